"""A bridge that notes what it was given, and fails when it is told to."""

from collections.abc import Awaitable, Callable
from typing import Any

from waystation.push.endpoint.bridges.bridge import Condition, RouterData, checked_token
from waystation.push.errors import UnknownAppError
from waystation.push.model import Notification


class RecordingBridge:
    """A `Bridge` with one app, `app`."""

    def __init__(self, router_type: str = "fcm") -> None:
        self.router_type = router_type
        self.sent: list[tuple[str, Notification]] = []  # device token, notification
        self.failure: Exception | None = None
        self.during: Callable[[], Awaitable[None]] | None = None  # a send is under way

    def registered(self, app_id: str, token: str, aps: object) -> dict[str, Any]:
        if app_id != "app":
            raise UnknownAppError("Unknown app id")
        data: dict[str, Any] = {"token": checked_token(token), "app_id": app_id}
        return data if aps is None else data | {"aps": aps}

    async def send(self, data: RouterData, notification: Notification) -> int:
        if self.during is not None:
            await self.during()
        if self.failure is not None:
            raise self.failure
        self.sent.append((data["token"], notification))
        return 200

    async def check(self) -> list[Condition]:
        return self.conditions()

    def conditions(self) -> list[Condition]:
        return [Condition("app", self.failure is None)]

    async def close(self) -> None: ...
