"""Matrix push gateway for UnifiedPush: `/_matrix/push/v1/notify`.

A homeserver posts a notification for devices whose pushkeys are endpoint URLs. The gateway delivers
it to the endpoints of this service.

Rule 1: a pushkey that is not an endpoint of this service is rejected; no URL is ever fetched.
Rule 2: `rejected` lists pushkeys that can never work again (gone, of another service, or bound to a
        VAPID key, which a homeserver does not have), so that the homeserver removes them. If this
        service fails, the whole request fails, and the homeserver repeats it.
Rule 3: the payload is the notification without `devices`, so that no device learns the pushkeys of
        others.

The payload is not encrypted, because a homeserver does not have the device's keys. Web Push
requires a content encoding for every body, so the notification is labelled `aes128gcm`, as the
gateways of UnifiedPush do; its distributors pass the body on, and the Matrix app finds JSON. An app
that wants minimal content asks its homeserver for `event_id_only`.
"""

from typing import Annotated, Any, Final

import msgspec

from waystation.base.decode_errors import DECODE_ERRORS
from waystation.base.errors import GoneError
from waystation.net.http1.message import Request, Response
from waystation.push.endpoint.intake import Intake
from waystation.push.errors import BadBodyError, InvalidRouterTypeError, InvalidTokenError
from waystation.push.model import Urgency
from waystation.push.settings import Endpoint
from waystation.push.wire.webpush import AES128GCM_ONLY, Post

PATH: Final = b"/_matrix/push/v1/notify"
BODY_BYTES_MAX: Final = 65_536
DEVICES_MAX: Final = 64
TTL_S: Final = 7 * 86_400
_SHORT: Final = ("event_id", "room_id", "prio", "counts", "id", "membership", "user_is_target")
_JSON: Final = b"application/json"


class Device(msgspec.Struct, frozen=True):
    pushkey: Annotated[str, msgspec.Meta(max_length=2048)]


class _Devices(msgspec.Struct, frozen=True):
    devices: Annotated[list[Device], msgspec.Meta(min_length=1, max_length=DEVICES_MAX)]
    prio: str | None = None


class _Notify(msgspec.Struct, frozen=True):
    notification: _Devices


class _Content(msgspec.Struct, frozen=True):
    notification: dict[str, Any]


class _Rejected(msgspec.Struct, frozen=True):
    rejected: list[str]


_decode = msgspec.json.Decoder(_Notify).decode
_decode_content = msgspec.json.Decoder(_Content).decode
_encode = msgspec.json.Encoder().encode


class MatrixGateway:
    def __init__(self, settings: Endpoint, intake: Intake) -> None:
        self._intake = intake
        self._ours = settings.url.rstrip("/") + "/wpush/"
        self._data_bytes_max = settings.max_data_bytes
        self._ttl_s = min(TTL_S, settings.max_notification_ttl_s)

    def discover(self) -> Response:
        """Discovery: tells an app that this push service is also a Matrix gateway."""
        return Response.of(200, b'{"unifiedpush":{"gateway":"matrix"}}', content_type=_JSON)

    async def notify(self, request: Request) -> Response:
        if request.oversize:
            raise BadBodyError(f"A notification may have at most {BODY_BYTES_MAX} bytes")
        try:
            notify = _decode(request.body).notification
            content = _decode_content(request.body).notification
        except DECODE_ERRORS as error:
            raise BadBodyError(str(error)) from None
        payload = self._payload(content)
        post = Post(
            self._ttl_s,
            None,
            Urgency.LOW if notify.prio == "low" else Urgency.HIGH,
            AES128GCM_ONLY,
        )
        rejected: list[str] = []
        for pushkey in dict.fromkeys(device.pushkey for device in notify.devices):
            token = self._token(pushkey)
            if token is None:
                rejected.append(pushkey)
                continue
            try:
                await self._intake.deliver_unsigned(token, post, payload)
            except (GoneError, InvalidTokenError, InvalidRouterTypeError):
                rejected.append(pushkey)
        return Response.of(200, _encode(_Rejected(rejected)), content_type=_JSON)

    def _token(self, pushkey: str) -> bytes | None:
        """The token of a v1 endpoint of this service; None for any other pushkey."""
        if not pushkey.startswith(self._ours) or not pushkey.isascii():
            return None
        version, slash, token = pushkey[len(self._ours) :].partition("/")
        if not slash:
            return version.encode()
        return token.encode() if version == "v1" else None

    def _payload(self, content: dict[str, Any]) -> bytes:
        content.pop("devices", None)
        payload = _encode({"notification": content})
        if len(payload) > self._data_bytes_max:
            # Reduce it to the format `event_id_only`.
            short = {name: content[name] for name in _SHORT if name in content}
            payload = _encode({"notification": short})
        if len(payload) > self._data_bytes_max:
            raise BadBodyError("The notification is too large")
        return payload
