"""Bridge to the Apple Push Notification service over HTTP/2 (webpush §7.3).

Rule 1: each release channel keeps one connection, with its own certificate or a provider token.
        Apple requires a token to be used for 20 to 60 minutes.
Rule 2: a device that Apple does not know (410, or 400 BadDeviceToken) is gone.
"""

import asyncio
import base64
import contextlib
import hashlib
import os
import ssl
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import quote

import msgspec
from structlog.typing import FilteringBoundLogger

from waystation.base.clock import Clock
from waystation.base.decode_errors import DECODE_ERRORS
from waystation.base.ids import dashed
from waystation.base.settings import SettingsError
from waystation.net.http2.client import Http2Answer, Http2Client, Http2Limits, http2_tls
from waystation.push.errors import (
    BadApsError,
    BridgeAuthError,
    BridgeError,
    BridgeFailedError,
    BridgeGoneError,
    BridgePayloadTooLargeError,
    UnknownChannelError,
)
from waystation.push.model import Notification, Urgency
from waystation.push.settings import Apns

from .apps import App, ask_vendor, check_url, pause_of
from .bridge import (
    Condition,
    RouterData,
    check_size,
    checked_token,
    fields_of,
    readable_file,
    token_of,
)
from .jwt import SigningKey, read_signing_key, sign_jwt

PRODUCTION: Final = "https://api.push.apple.com"
SANDBOX: Final = "https://api.sandbox.push.apple.com"
TOKEN_S: Final = 50 * 60.0  # Apple refuses tokens older than an hour
DEFAULT_APS: Final = {
    "alert": {
        "title-loc-key": "SentTab.NoTabArrivingNotification.title",
        "loc-key": "SentTab.NoTabArrivingNotification.body",
    },
    "mutable-content": 1,
}
PRIORITY, PRIORITY_LOW = "10", "5"
_UNKNOWN_DEVICE: Final = "0" * 64
_GONE: Final = frozenset({"BadDeviceToken", "Unregistered", "ExpiredToken"})
_EXPIRED: Final = "ExpiredProviderToken"
# Reasons that mean bad credentials, whatever the status.
_OF_CREDENTIALS: Final = frozenset(
    {
        _EXPIRED,
        "BadCertificate",
        "BadCertificateEnvironment",
        "Forbidden",
        "InvalidProviderToken",
        "MissingProviderToken",
        "UnrelatedKeyIdInToken",
        "BadEnvironmentKeyIdInToken",
    }
)


class _ChannelSettings(msgspec.Struct, frozen=True):
    key: str
    cert: str = ""
    key_id: str = ""
    team_id: str = ""
    topic: str = ""
    sandbox: bool = False


class _ErrorAnswer(msgspec.Struct, frozen=True):
    reason: str = ""


class ProviderTokens:
    """The token of one team's key (rule 1)."""

    def __init__(self, key: SigningKey, key_id: str, team_id: str, clock: Clock) -> None:
        self._key = key
        self._key_id = key_id
        self._team_id = team_id
        self._clock = clock
        self._token = ""
        self._made_mono = 0.0

    def current(self) -> str:
        if not self._token or self._clock.mono() - self._made_mono >= TOKEN_S:
            claims = {"iss": self._team_id, "iat": self._clock.now_ms() // 1000}
            self._token = sign_jwt(self._key, claims, key_id=self._key_id)
            self._made_mono = self._clock.mono()
        return self._token

    def expired(self, token: str) -> None:
        if token == self._token:
            self._token = ""


class Channel(App):
    """One release channel."""

    def __init__(
        self,
        name: str,
        *,
        topic: str,
        client: Http2Client,
        tokens: ProviderTokens | None,
        clock: Clock,
        log: FilteringBoundLogger,
    ) -> None:
        super().__init__(name, via="apns", clock=clock, log=log)
        self.topic = topic
        self.client = client
        self.tokens = tokens


class ApnsBridge:
    """A `Bridge`."""

    router_type = "apns"

    def __init__(
        self,
        settings: Apns,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        log: FilteringBoundLogger,
    ) -> None:
        self._settings = settings
        limits = Http2Limits(idle_timeout_s=settings.pool_idle_timeout_s)
        self._channels = {
            name: _channel(name, given, settings, limits, loop=loop, clock=clock, log=log)
            for name, given in _read_channels(settings.channels).items()
        }

    def origins(self) -> dict[str, str]:
        """URL of APNs for each release channel."""
        return {name: channel.client.origin for name, channel in self._channels.items()}

    @property
    def connections(self) -> int:
        return sum(channel.client.connections for channel in self._channels.values())

    def registered(self, app_id: str, token: str, aps: object) -> dict[str, Any]:
        self._channel(app_id)
        data: dict[str, Any] = {"token": checked_token(token), "rel_channel": app_id}
        if aps is not None:
            data["aps"] = _checked_aps(aps)
        return data

    async def send(self, data: RouterData, notification: Notification) -> int:
        token, name = token_of(data), data.get("rel_channel")
        if token is None or not isinstance(name, str):
            raise BridgeGoneError("The record has no device token or no release channel")
        channel = self._channel(name)
        aps = DEFAULT_APS if data.get("aps") is None else _checked_aps(data["aps"])
        payload = {
            "aps": aps,
            **fields_of(notification, dashed(notification.channel_id)),
            "ver": notification.message_id,
        }
        body = msgspec.json.encode(payload)
        check_size(body, self._settings.max_data_bytes)
        headers = [
            ("apns-topic", channel.topic),
            ("apns-push-type", "alert" if "alert" in aps else "background"),
            ("apns-priority", _priority(aps, notification)),
            ("apns-expiration", str(notification.timestamp_s + notification.ttl_s)),
        ]
        if notification.topic is not None:
            headers.append(("apns-collapse-id", _collapse_id(notification)))
        return await channel.attempt(lambda: self._post(channel, token, headers, body))

    async def check(self) -> list[Condition]:
        return [await self._checked(channel) for channel in self._channels.values()]

    async def _checked(self, channel: Channel) -> Condition:
        """Send to a device that does not exist: Apple checks the credentials first."""
        headers = [("apns-topic", channel.topic), ("apns-push-type", "background")]
        body = msgspec.json.encode({"aps": {"content-available": 1}})
        try:
            await self._post(channel, _UNKNOWN_DEVICE, headers, body)
        except BridgeGoneError:
            return Condition(channel.app_id, True)
        except BridgeError as error:
            return Condition(channel.app_id, False, str(error))
        return Condition(channel.app_id, True)

    def conditions(self) -> list[Condition]:
        return [channel.condition for channel in self._channels.values()]

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.client.close()

    def _channel(self, name: str) -> Channel:
        channel = self._channels.get(name)
        if channel is None:
            raise UnknownChannelError(f"Unknown release channel {name[:64]!r}")
        return channel

    async def _post(
        self, channel: Channel, token: str, headers: list[tuple[str, str]], body: bytes
    ) -> int:
        answer = await self._ask(channel, token, headers, body)
        if _reason(answer) == _EXPIRED and channel.tokens is not None:
            answer = await self._ask(channel, token, headers, body)
        if answer.status == 200:
            return 200
        raise _error_of(answer)

    async def _ask(
        self, channel: Channel, token: str, headers: list[tuple[str, str]], body: bytes
    ) -> Http2Answer:
        tokens = channel.tokens
        proof = "" if tokens is None else tokens.current()
        signed = [*headers, ("authorization", f"bearer {proof}")] if proof else headers
        answer = await ask_vendor(
            channel.client,
            f"/3/device/{quote(token, safe='')}",
            signed,
            body,
            timeout_s=self._settings.request_timeout_s,
        )
        if tokens is not None and _reason(answer) == _EXPIRED:
            tokens.expired(proof)
        return answer


def _error_of(answer: Http2Answer) -> Exception:
    status, reason = answer.status, _reason(answer)
    if status == 410 or reason in _GONE:
        return BridgeGoneError("APNs does not know the device")
    if status == 403 or reason in _OF_CREDENTIALS:
        return BridgeAuthError(f"APNs refused the credentials: {reason}")
    if status == 413:
        return BridgePayloadTooLargeError("APNs refused the message as too large")
    if status >= 500:
        return BridgeFailedError(f"APNs answered {status} {reason}", pause_s=pause_of(answer))
    return BridgeError(f"APNs answered {status} {reason}")


def _reason(answer: Http2Answer) -> str:
    if answer.status == 200:
        return ""
    try:
        return msgspec.json.decode(answer.body, type=_ErrorAnswer).reason[:64]
    except DECODE_ERRORS:
        return "without a reason"


def _priority(aps: dict[str, Any], notification: Notification) -> str:
    """Apple refuses high priority for notifications that show nothing, and delays low priority to
    save power."""
    low = notification.urgency in (Urgency.VERY_LOW, Urgency.LOW)
    return PRIORITY_LOW if low or "alert" not in aps else PRIORITY


def _collapse_id(notification: Notification) -> str:
    """Topic and subscription, because a device has many subscriptions; at most 64 bytes."""
    digest = hashlib.sha256(notification.channel_id + (notification.topic or "").encode()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _checked_aps(aps: object) -> dict[str, Any]:
    if not isinstance(aps, dict):
        raise BadApsError("Invalid APS data: it is not an object")
    return cast("dict[str, Any]", aps)


def _read_channels(text: str) -> dict[str, _ChannelSettings]:
    if not text.strip():
        return {}
    try:
        return msgspec.json.decode(text, type=dict[str, _ChannelSettings])
    except msgspec.MsgspecError as exc:
        raise SettingsError([f"apns.channels is not JSON of channels by name: {exc}"]) from exc


def _channel(
    name: str,
    given: _ChannelSettings,
    settings: Apns,
    limits: Http2Limits,
    *,
    loop: asyncio.AbstractEventLoop,
    clock: Clock,
    log: FilteringBoundLogger,
) -> Channel:
    where = f"apns.channels, {name}"
    tls: ssl.SSLContext | None = None
    tokens: ProviderTokens | None = None
    if given.cert:
        try:
            with _file(given.cert) as cert, _file(given.key) as key:
                tls = http2_tls(cert=cert, key=key)
        except (OSError, ValueError) as exc:
            raise SettingsError([f"{where}: cert and key cannot be used: {exc}"]) from exc
    elif given.key_id and given.team_id:
        try:
            with _file(given.key) as path:
                key = read_signing_key(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as exc:
            raise SettingsError([f"{where}: key: {exc}"]) from exc
        tokens = ProviderTokens(key, given.key_id, given.team_id, clock)
    else:
        raise SettingsError([f"{where}: it needs cert and key, or key, key_id and team_id"])
    if settings.base_url:
        check_url("apns.base_url", settings.base_url)
    origin = settings.base_url or (SANDBOX if given.sandbox else PRODUCTION)
    return Channel(
        name,
        topic=given.topic or f"com.mozilla.org.{name}",
        client=Http2Client(origin, loop=loop, tls=tls, limits=limits),
        tokens=tokens,
        clock=clock,
        log=log,
    )


@contextlib.contextmanager
def _file(text: str) -> Generator[str]:
    """The path of a file. PEM text from the settings is written to a temporary file, because `ssl`
    reads files only."""
    if not text.lstrip().startswith("-----BEGIN"):
        yield str(readable_file(text))
        return
    descriptor, path = tempfile.mkstemp(suffix=".pem")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        yield path
    finally:
        Path(path).unlink()
