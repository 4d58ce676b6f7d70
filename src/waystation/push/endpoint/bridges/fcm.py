"""Bridge to Firebase Cloud Messaging, HTTP v1 (webpush §7.2).

Rule 1: an access token is requested with the service account and renewed shortly before it expires,
        while the old one is still used. If FCM refuses a token, a new one is tried once.
Rule 2: messages are data only, so that the app on the device wakes and decrypts them.
"""

import asyncio
import urllib.parse
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from structlog.typing import FilteringBoundLogger

from waystation.base.clock import Clock
from waystation.base.decode_errors import DECODE_ERRORS
from waystation.base.ids import dashed
from waystation.base.settings import SettingsError
from waystation.net.http2.client import Http2Answer, Http2Client, Http2Clients
from waystation.push.errors import (
    BridgeAuthError,
    BridgeError,
    BridgeFailedError,
    BridgeGoneError,
    UnknownAppError,
)
from waystation.push.model import Notification
from waystation.push.settings import Fcm

from .apps import App, ask_vendor, check_url, pause_of
from .bridge import (
    Condition,
    RouterData,
    app_id_of,
    check_size,
    checked_token,
    fields_of,
    readable_file,
    token_of,
)
from .jwt import SigningKey, read_signing_key, sign_jwt

SCOPE: Final = "https://www.googleapis.com/auth/firebase.messaging"
GRANT_TYPE: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
ASSERTION_S: Final = 3600
RENEW_BEFORE_S: Final = 300.0
# A topic without subscribers: FCM checks the credentials and delivers nothing.
_DRY_RUN: Final = msgspec.json.encode(
    {"validate_only": True, "message": {"topic": "waystation-doctor", "data": {"chid": "-"}}}
)


class ServiceAccount(msgspec.Struct, frozen=True):
    """Fields of the service account's JSON from the Firebase console."""

    client_email: str
    private_key: str
    token_uri: str = "https://oauth2.googleapis.com/token"


class _Credential(msgspec.Struct, frozen=True):
    project_id: str
    credential: str


class _TokenAnswer(msgspec.Struct, frozen=True):
    access_token: str
    expires_in: float = 3600.0


class _Violation(msgspec.Struct, frozen=True):
    subject: str = ""
    description: str = ""


class _Detail(msgspec.Struct, frozen=True):
    error_code: str = msgspec.field(default="", name="errorCode")  # of FCM's own detail
    violations: list[_Violation] = []  # of a `google.rpc.QuotaFailure`


class _Refusal(msgspec.Struct, frozen=True):
    status: str = ""
    details: list[_Detail] = []


class _ErrorAnswer(msgspec.Struct, frozen=True):
    error: _Refusal = _Refusal()


class Project(msgspec.Struct, frozen=True):
    project_id: str
    account: ServiceAccount
    key: SigningKey


def read_credentials(text: str) -> dict[str, Project]:
    """`fcm.credentials`: JSON of app id -> {"project_id", "credential"}; a credential is the JSON
    of a service account or the path of its file. Raises `SettingsError`."""
    if not text.strip():
        return {}
    try:
        named = msgspec.json.decode(text, type=dict[str, _Credential])
    except msgspec.MsgspecError as exc:
        raise SettingsError([f"fcm.credentials is not JSON of projects by app id: {exc}"]) from exc
    return {app_id: _project(app_id, given) for app_id, given in named.items()}


def _project(app_id: str, given: _Credential) -> Project:
    where = f"fcm.credentials, app {app_id}"
    text = given.credential
    try:
        if not text.lstrip().startswith("{"):
            text = readable_file(text).read_text(encoding="utf-8")
        account = msgspec.json.decode(text, type=ServiceAccount)
    except OSError as exc:
        raise SettingsError([f"{where}: {exc.filename} cannot be read: {exc.strerror}"]) from exc
    except msgspec.MsgspecError as exc:
        raise SettingsError([f"{where}: not a service account: {exc}"]) from exc
    except ValueError as exc:
        raise SettingsError([f"{where}: {exc}"]) from exc
    try:
        key = read_signing_key(account.private_key)
    except ValueError as exc:
        raise SettingsError([f"{where}: private_key: {exc}"]) from exc
    check_url(f"{where}: token_uri", account.token_uri)
    return Project(given.project_id, account, key)


class AccessTokens:
    """The access token of one project (rule 1)."""

    def __init__(
        self, project: Project, client: Http2Client, clock: Clock, timeout_s: float
    ) -> None:
        self._project = project
        self._client = client
        self._clock = clock
        self._timeout_s = timeout_s
        self._token = ""
        self._ends_mono = 0.0
        self._renewing: asyncio.Task[None] | None = None

    async def current(self) -> str:
        left_s = self._ends_mono - self._clock.mono()
        if left_s < RENEW_BEFORE_S and self._renewing is None:
            self._renewing = asyncio.get_running_loop().create_task(self._renew())
            self._renewing.add_done_callback(_look)
        if left_s <= 0 and self._renewing is not None:
            await asyncio.shield(self._renewing)
        return self._token

    def refused(self, token: str) -> None:
        """FCM refused the token although it has not expired: drop it."""
        if token == self._token:
            self._ends_mono = 0.0

    async def close(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.wait([self._renewing])

    async def _renew(self) -> None:
        try:
            account = self._project.account
            now_s = self._clock.now_ms() // 1000
            claims: dict[str, Any] = {
                "iss": account.client_email,
                "scope": SCOPE,
                "aud": account.token_uri,
                "iat": now_s,
                "exp": now_s + ASSERTION_S,
            }
            form = {"grant_type": GRANT_TYPE, "assertion": sign_jwt(self._project.key, claims)}
            began = self._clock.mono()
            answer = await ask_vendor(
                self._client,
                urlsplit(account.token_uri).path or "/",
                [("content-type", "application/x-www-form-urlencoded")],
                urllib.parse.urlencode(form).encode(),
                timeout_s=self._timeout_s,
            )
            if answer.status >= 500 or answer.status == 429:
                raise BridgeFailedError(
                    f"the token service answered {answer.status}", pause_s=pause_of(answer)
                )
            if answer.status != 200:
                raise BridgeAuthError(f"the token service answered {answer.status}")
            try:
                made = msgspec.json.decode(answer.body, type=_TokenAnswer)
            except DECODE_ERRORS as exc:
                raise BridgeError("the token service answered without a token") from exc
            self._token, self._ends_mono = made.access_token, began + made.expires_in
        finally:
            self._renewing = None


class _FcmApp(App):
    def __init__(
        self,
        app_id: str,
        project: Project,
        tokens: AccessTokens,
        *,
        prefix: str,
        clock: Clock,
        log: FilteringBoundLogger,
    ) -> None:
        super().__init__(app_id, via="fcm", clock=clock, log=log)
        self.path = f"{prefix}/v1/projects/{project.project_id}/messages:send"
        self.tokens = tokens


class FcmBridge:
    """A `Bridge`."""

    router_type = "fcm"

    def __init__(
        self,
        settings: Fcm,
        *,
        clients: Http2Clients,
        clock: Clock,
        log: FilteringBoundLogger,
    ) -> None:
        self._settings = settings
        check_url("fcm.base_url", settings.base_url)
        prefix = urlsplit(settings.base_url).path.rstrip("/")
        self._client = clients.of(settings.base_url)
        self._apps = {
            app_id: _FcmApp(
                app_id,
                project,
                AccessTokens(
                    project, clients.of(project.account.token_uri), clock, settings.timeout_s
                ),
                prefix=prefix,
                clock=clock,
                log=log,
            )
            for app_id, project in read_credentials(settings.credentials).items()
        }

    def registered(self, app_id: str, token: str, aps: object) -> dict[str, Any]:
        del aps  # APNs only
        self._app(app_id)
        return {"token": checked_token(token), "app_id": app_id}

    async def send(self, data: RouterData, notification: Notification) -> int:
        token, app_id = token_of(data), app_id_of(data)
        if token is None or app_id is None:
            raise BridgeGoneError("The record has no device token or no app id")
        app = self._app(app_id)
        settings = self._settings
        fields = fields_of(notification, dashed(notification.channel_id))
        check_size(msgspec.json.encode(fields), settings.max_data_bytes)
        ttl_s = min(settings.max_ttl_s, max(settings.min_ttl_s, notification.ttl_s))
        body = msgspec.json.encode(
            {"message": {"token": token, "android": {"ttl": f"{ttl_s}s", "data": fields}}}
        )
        return await app.attempt(lambda: self._post(app, body))

    async def check(self) -> list[Condition]:
        return [await self._checked(app) for app in self._apps.values()]

    async def _checked(self, app: _FcmApp) -> Condition:
        try:
            await self._post(app, _DRY_RUN)
        except (BridgeError, BridgeGoneError) as error:
            return Condition(app.app_id, False, str(error))
        return Condition(app.app_id, True)

    def conditions(self) -> list[Condition]:
        return [app.condition for app in self._apps.values()]

    async def close(self) -> None:
        for app in self._apps.values():
            await app.tokens.close()

    def _app(self, app_id: str) -> _FcmApp:
        app = self._apps.get(app_id)
        if app is None:
            raise UnknownAppError(f"Unknown app id {app_id[:64]!r}")
        return app

    async def _post(self, app: _FcmApp, body: bytes) -> int:
        answer = await self._ask(app, body)
        if _token_refused(answer):
            answer = await self._ask(app, body)  # with a new token (rule 1)
        status = answer.status
        if 200 <= status < 300:
            _check_json(answer)
            return status
        if _token_refused(answer):
            raise BridgeAuthError("FCM refused the access token")
        if status == 404:
            _check_json(answer)  # else a proxy's 404 would remove every device
            raise BridgeGoneError("FCM does not know the device")
        if (status == 429 and not _of_one_device(answer)) or status >= 500:
            raise BridgeFailedError(
                f"FCM answered {status} {_said(answer)}", pause_s=pause_of(answer)
            )
        raise BridgeError(f"FCM answered {status} {_said(answer)}")

    async def _ask(self, app: _FcmApp, body: bytes) -> Http2Answer:
        token = await app.tokens.current()
        answer = await ask_vendor(
            self._client,
            app.path,
            [("authorization", f"Bearer {token}"), ("content-type", "application/json")],
            body,
            timeout_s=self._settings.timeout_s,
        )
        if _token_refused(answer):
            app.tokens.refused(token)
        return answer


def _check_json(answer: Http2Answer) -> None:
    """A 200 or 404 without JSON is not from FCM."""
    try:
        msgspec.json.decode(answer.body, type=dict[str, Any])
    except DECODE_ERRORS as exc:
        raise BridgeError(f"FCM answered {answer.status} without JSON") from exc


def _refusal(answer: Http2Answer) -> _Refusal:
    try:
        return msgspec.json.decode(answer.body, type=_ErrorAnswer).error
    except DECODE_ERRORS:
        return _Refusal("without a reason")


def _said(answer: Http2Answer) -> str:
    """The error code; the error's text is not used because it may quote the message."""
    return _refusal(answer).status[:64]


def _token_refused(answer: Http2Answer) -> bool:
    """Whether FCM refused the access token. It also answers 401 for a device behind another network
    for which the project has no key; a new token does not help then."""
    return answer.status == 401 and all(
        detail.error_code != "THIRD_PARTY_AUTH_ERROR" for detail in _refusal(answer).details
    )


def _of_one_device(answer: Http2Answer) -> bool:
    """Whether a 429 concerns a single device. FCM also sends it for the whole project; only that
    must pause all messages."""
    found = [one for detail in _refusal(answer).details for one in detail.violations]
    return any("device" in f"{one.subject} {one.description}".lower() for one in found)


def _look(task: "asyncio.Task[None]") -> None:
    if not task.cancelled():
        task.exception()  # the callers that waited have it
