"""Stub bridge for load tests and client tests: sends nothing (webpush §7.4)."""

from typing import Any, Final

from waystation.push.errors import BridgeStubError, InvalidRouterTokenError, UnknownAppError
from waystation.push.model import Notification
from waystation.push.settings import Stub

from .bridge import Condition, RouterData, app_id_of

SUCCESS, ERROR = "success", "error"
TOKEN: Final = "success"


class StubBridge:
    """A `Bridge`. The app id `success` accepts every message, `error` refuses every message."""

    router_type = "stub"

    def __init__(self, settings: Stub) -> None:
        self._error = settings.error

    def registered(self, app_id: str, token: str, aps: object) -> dict[str, Any]:
        del aps  # APNs only
        if app_id not in (SUCCESS, ERROR):
            raise UnknownAppError(f"The stub has the app ids {SUCCESS} and {ERROR}")
        if token != TOKEN:
            raise InvalidRouterTokenError("Invalid router token")
        return {"token": token, "app_id": app_id}

    async def send(self, data: RouterData, notification: Notification) -> int:
        del notification
        if app_id_of(data) != SUCCESS:
            raise BridgeStubError(self._error)
        return 201

    async def check(self) -> list[Condition]:
        return self.conditions()

    def conditions(self) -> list[Condition]:
        return [Condition(SUCCESS, True), Condition(ERROR, True)]

    async def close(self) -> None: ...
