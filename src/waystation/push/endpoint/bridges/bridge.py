"""What the endpoint asks of a bridge, and what every bridge does alike.

Rule 1: `send` returns when the vendor has taken the message, and raises otherwise. Nothing is
        stored and nothing is sent again later: the sender sees what happened.
Rule 2: a record that cannot be used any more (an unknown device, no token, no app id) raises
        `BridgeGoneError`, and the endpoint removes the user agent.
Rule 3: credentials, device tokens and payloads reach no log and no error text.
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
    """How one app of a bridge is: for `/health`, `doctor` and people."""

    app_id: str
    ok: bool
    detail: str = ""


class Bridge(Protocol):
    """One push network, with all apps that are configured for it."""

    router_type: str  # as it stands in records and in paths of the registration API

    def registered(self, app_id: str, token: str, aps: object) -> dict[str, Any]:
        """`router_data` for a device; `aps` is what the client gave, None if nothing. Raises
        `InvalidRouterTokenError`, `UnknownAppError`, `UnknownChannelError` or `BadApsError`."""
        ...

    async def send(self, data: RouterData, notification: Notification) -> int:
        """The vendor's status, once it has taken the message."""
        ...

    async def check(self) -> list[Condition]:
        """Each app by a dry run: are the credentials good, does the vendor answer?"""
        ...

    def conditions(self) -> list[Condition]:
        """Each app as it was when it was used last; asks nobody."""
        ...

    async def close(self) -> None: ...


def app_id_of(data: RouterData) -> str | None:
    """Of an FCM record; records in the form of GCM carry a sender id instead."""
    app_id = data.get("app_id")
    if isinstance(app_id, str):
        return app_id
    creds = data.get("creds")
    if not isinstance(creds, dict):
        return None
    sender_id = cast("dict[str, Any]", creds).get("senderID")
    return sender_id if isinstance(sender_id, str) else None


def readable_file(text: str) -> Path:
    """The file that a setting names. Raises `ValueError` for what can be none, such as a key
    itself, so that it stands in no message."""
    if len(text) > _PATH_LETTERS_MAX or "\n" in text:
        raise ValueError("it is neither in the form that is asked for nor the path of a file")
    return Path(text)


def token_of(data: RouterData) -> str | None:
    token = data.get("token")
    return token if isinstance(token, str) and token else None


def checked_token(token: str) -> str:
    """The form that tokens of all networks have."""
    if len(token) < TOKEN_LETTERS_MIN or " " in token:
        raise InvalidRouterTokenError("Invalid router token")
    return token


def fields_of(notification: Notification, chid: str) -> dict[str, str]:
    """The flat map that an app on the device reads (webpush §7.1)."""
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
    """A device is reached through its vendor's limit, which is smaller than ours."""
    if len(encoded) > most:
        raise BridgePayloadTooLargeError(
            f"This message is intended for a constrained device and is limited to {most} bytes with"
            f" its encoding: {len(encoded) - most} bytes too many"
        )
