"""Bridge without configuration: refuses every request and loads no library."""

from typing import Any, NoReturn

from waystation.push.errors import UnknownAppError, UnknownChannelError, UnknownRouterTypeError
from waystation.push.model import Notification

from .bridge import Condition, RouterData


class UnconfiguredBridge:
    """A `Bridge` without apps."""

    def __init__(
        self,
        router_type: str,
        error: type[UnknownAppError] | type[UnknownChannelError] | type[UnknownRouterTypeError],
    ) -> None:
        self.router_type = router_type
        self._error = error

    def registered(self, app_id: str, token: str, aps: object) -> dict[str, Any]:
        del app_id, token, aps
        self._refuse()

    async def send(self, data: RouterData, notification: Notification) -> int:
        del data, notification
        self._refuse()

    async def check(self) -> list[Condition]:
        return []

    def conditions(self) -> list[Condition]:
        return []

    async def close(self) -> None: ...

    def _refuse(self) -> NoReturn:
        raise self._error(f"The bridge {self.router_type} is not configured on this server")
