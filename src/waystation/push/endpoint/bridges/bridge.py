"""Interface of a bridge, and functions that all bridges share.

Rule 1: `send` returns after the vendor has accepted the message, and raises otherwise. Nothing is
        stored or retried; the sender gets the result.
Rule 2: an unusable record (unknown device, no token, no app id) raises `BridgeGoneError`, and the
        endpoint removes the user agent.
Rule 3: credentials, device tokens and payloads never appear in logs or error texts.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol, cast

import msgspec

from waystation.push.errors import BridgePayloadTooLargeError, InvalidRouterTokenError
from waystation.push.model import Notification

RouterData = Mapping[str, Any]  # `router_data` of a bridged user agent's record
TOKEN_LETTERS_MIN: Final = 8
_PATH_LETTERS_MAX: Final = 255


class Condition(msgspec.Struct, frozen=True):
    """State of one app of a bridge, for `/health` and `waystation doctor`."""

    app_id: str
    ok: bool
    detail: str = ""


class Bridge(Protocol):
    """One push network with its configured apps."""

    router_type: str  # in records and in paths of the registration API

    def registered(self, app_id: str, token: str, aps: object) -> dict[str, Any]:
        """`router_data` of a device; `aps` is from the request, or None. Raises
        `InvalidRouterTokenError`, `UnknownAppError`, `UnknownChannelError` or `BadApsError`."""
        ...

    async def send(self, data: RouterData, notification: Notification) -> int:
        """Send one message. Returns the vendor's status."""
        ...

    async def check(self) -> list[Condition]:
        """Test each app with a dry run: credentials, and whether the vendor answers."""
        ...

    def conditions(self) -> list[Condition]:
        """State of each app after its last use, without a request."""
        ...

    async def close(self) -> None: ...


def app_id_of(data: RouterData) -> str | None:
    """App id of an FCM record; a record in GCM's form has a sender id instead."""
    app_id = data.get("app_id")
    if isinstance(app_id, str):
        return app_id
    creds = data.get("creds")
    if not isinstance(creds, dict):
        return None
    sender_id = cast("dict[str, Any]", creds).get("senderID")
    return sender_id if isinstance(sender_id, str) else None


def readable_file(text: str) -> Path:
    """The file that a setting names. Raises `ValueError` if the text cannot be a path; it may be a
    key itself, so the message does not contain it."""
    if len(text) > _PATH_LETTERS_MAX or "\n" in text:
        raise ValueError("neither in the required form nor the path of a file")
    return Path(text)


def token_of(data: RouterData) -> str | None:
    token = data.get("token")
    return token if isinstance(token, str) and token else None


def checked_token(token: str) -> str:
    """Check the form that device tokens of all networks have."""
    if len(token) < TOKEN_LETTERS_MIN or " " in token:
        raise InvalidRouterTokenError("Invalid router token")
    return token


def fields_of(notification: Notification, chid: str) -> dict[str, str]:
    """The flat map that the app on the device gets (webpush §7.1)."""
    fields = {"chid": chid}
    if notification.data is not None:
        headers = notification.headers or {}
        fields["body"] = notification.data
        for name, header in (
            ("con", "encoding"),
            ("enc", "encryption"),
            ("cryptokey", "crypto_key"),
        ):
            if header in headers:
                fields[name] = headers[header]
    if notification.reliability_id is not None:
        fields["rid"] = notification.reliability_id
    return fields


def check_size(encoded: bytes, most: int) -> None:
    """Check the vendor's limit, which is lower than `endpoint.max_data_bytes`."""
    if len(encoded) > most:
        raise BridgePayloadTooLargeError(
            f"This message is intended for a constrained device and is limited to {most} bytes with"
            f" its encoding: {len(encoded) - most} bytes too many"
        )
