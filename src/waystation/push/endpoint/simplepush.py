"""SimplePush: app servers set the version number of a channel. Two dialects.

Dialect `p` (the last Python generation): 200 `Delivered`, 202 `Notification Stored`; a missing
version is the time in seconds. Dialect `s` (the first design): 200 `Success` for both; a missing
version is refused, and the statuses of errors differ (`S_STATUSES`).

Only the newest version of a channel is stored. Data is delivered directly and never stored.
"""

import urllib.parse
from typing import Final, Literal

from waystation.base.clock import Clock
from waystation.base.errors import GoneError, WaystationError
from waystation.base.ids import parse_uuid
from waystation.base.numbers import parse_number
from waystation.net.http1.message import Request, Response
from waystation.push.endpoint.intake import Intake
from waystation.push.endpoint.observer import Observer
from waystation.push.endpoint.router import Outcome, Router
from waystation.push.errors import (
    InvalidTokenError,
    InvalidVersionError,
    PayloadTooLargeError,
)
from waystation.push.model import SIMPLEPUSH, VERSION_MAX, ChannelId, Uaid, Update
from waystation.push.token import V1_BYTES, EndpointToken, Keys
from waystation.push.wire.error_forms import form_of

DATA_BYTES_MAX: Final = 4096
BODY_BYTES_MAX: Final = 3 * DATA_BYTES_MAX + 1024  # all data percent-encoded, and other fields
_FIELDS_MAX: Final = 16
_TEXT: Final = b"text/plain"


class MissingVersionError(InvalidVersionError):
    """SimplePush: `version` is missing. Only dialect `s` requires it.

    Send a whole number that grows.
    """

    label = "missing_version"


S_STATUSES: Final[dict[type[WaystationError], int]] = {
    InvalidTokenError: 401,
    MissingVersionError: 401,
    PayloadTooLargeError: 401,
    GoneError: 404,
}


class SimplePushIntake:
    def __init__(
        self,
        dialect: Literal["p", "s"],
        *,
        intake: Intake,
        router: Router,
        keys: Keys,
        clock: Clock,
        observer: Observer | None = None,
    ) -> None:
        self._dialect = dialect
        self._intake = intake
        self._router = router
        self._keys = keys
        self._clock = clock
        self._observer = observer or Observer()

    async def put(self, request: Request, token: bytes) -> Response:
        """`PUT /spush/v1/{token}`, `/update/{token}`, `/push/{token}`"""
        endpoint = self._open(token)
        user_agent = await self._intake.recipient(endpoint, {SIMPLEPUSH})
        version, data = self._read(request)
        update = Update(endpoint.channel_id, version, data, self._clock.now_ms())
        self._observer.received(user_agent.uaid, update, len((data or "").encode()))
        try:
            outcome = await self._router.deliver_update(user_agent, update)
        except WaystationError as error:
            self._observer.errored(update, form_of(type(error)).errno or 0)
            raise
        if self._dialect == "s":
            return Response.of(200, b"Success", content_type=_TEXT)
        if outcome is Outcome.DIRECT:
            return Response.of(200, b"Delivered", content_type=_TEXT)
        return Response.of(202, b"Notification Stored", content_type=_TEXT)

    def status_of(self, error: WaystationError, usual: int) -> int:
        """The HTTP status of an error in this dialect."""
        if self._dialect == "s":
            for ancestor in type(error).__mro__:
                if ancestor in S_STATUSES:
                    return S_STATUSES[ancestor]
        return usual

    def _open(self, token: bytes) -> EndpointToken:
        plain = self._keys.open_token(token)
        if len(plain) == V1_BYTES:
            return EndpointToken(Uaid(plain[:16]), ChannelId(plain[16:]))
        # The first design sealed the two ids as text.
        uaid_text, _, channel_text = plain.decode("latin-1").partition(":")
        uaid, channel = parse_uuid(uaid_text), parse_uuid(channel_text)
        if uaid is None or channel is None:
            raise InvalidTokenError("Invalid token")
        return EndpointToken(Uaid(uaid), ChannelId(channel))

    def _read(self, request: Request) -> tuple[int, str | None]:
        if request.oversize:
            raise PayloadTooLargeError(f"Data may have at most {DATA_BYTES_MAX} bytes")
        fields = _fields(request.query) | _fields(request.body)
        data = fields.get("data")
        if data is not None and len(data.encode()) > DATA_BYTES_MAX:
            raise PayloadTooLargeError(f"Data may have at most {DATA_BYTES_MAX} bytes")
        text = fields.get("version", "").strip()
        if not text:
            if self._dialect == "s":
                raise MissingVersionError("No version present")
            return self._clock.now_ms() // 1000, data or None
        version = parse_number(text, VERSION_MAX)
        if version is None:
            raise InvalidVersionError("Invalid version")
        return version, data or None


def _fields(encoded: bytes) -> dict[str, str]:
    """Form fields, whatever the Content-Type; the first one of a name counts."""
    if not encoded:
        return {}
    try:
        pairs = urllib.parse.parse_qsl(
            encoded.decode("utf-8"), keep_blank_values=True, max_num_fields=_FIELDS_MAX
        )
    except ValueError:  # not UTF-8, or too many fields
        raise InvalidVersionError("The body is not a form") from None
    return dict(reversed(pairs))
