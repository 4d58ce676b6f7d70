"""Builds the configured bridges of one endpoint worker."""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from structlog.typing import FilteringBoundLogger

from waystation.app.settings import Settings
from waystation.base.clock import Clock
from waystation.base.settings import SettingsError
from waystation.push.endpoint.bridges.bridge import Bridge
from waystation.push.endpoint.bridges.stub import StubBridge
from waystation.push.endpoint.bridges.unconfigured import UnconfiguredBridge
from waystation.push.errors import UnknownAppError, UnknownChannelError, UnknownRouterTypeError

if TYPE_CHECKING:
    from waystation.net.http2.client import Http2Clients

SHOWN = ("apns", "fcm")  # in health answers


class Bridges:
    """Bridges by router type; libraries are loaded for configured ones only."""

    def __init__(self, settings: Settings, *, clock: Clock, log: FilteringBoundLogger) -> None:
        """Raises `SettingsError` for credentials that cannot be used."""
        self._clients: Http2Clients | None = None
        bridges: list[Bridge] = [
            self._fcm(settings, clock, log),
            _apns(settings, clock, log),
            StubBridge(settings.stub)
            if settings.stub.enabled
            else UnconfiguredBridge("stub", UnknownRouterTypeError),
        ]
        self.by_type: Mapping[str, Bridge] = {one.router_type: one for one in bridges}

    def _fcm(self, settings: Settings, clock: Clock, log: FilteringBoundLogger) -> Bridge:
        if not settings.fcm.credentials.strip(" {}\n"):
            return UnconfiguredBridge("fcm", UnknownAppError)
        try:
            from waystation.net.http2.client import (  # noqa: PLC0415 as well
                Http2Clients,
            )
            from waystation.push.endpoint.bridges.fcm import FcmBridge  # noqa: PLC0415 loads h2
        except ImportError as exc:
            raise _not_installed("fcm.credentials", exc) from exc
        clients = Http2Clients(asyncio.get_running_loop())
        self._clients = clients
        return FcmBridge(settings.fcm, clients=clients, clock=clock, log=log)

    def working(self) -> dict[str, bool]:
        """By router type: whether it is configured and its last use succeeded."""
        found = {name: self.by_type[name].conditions() for name in SHOWN}
        return {name: bool(apps) and all(one.ok for one in apps) for name, apps in found.items()}

    async def close(self) -> None:
        for bridge in self.by_type.values():
            await bridge.close()
        if self._clients is not None:
            await self._clients.close()


def _apns(settings: Settings, clock: Clock, log: FilteringBoundLogger) -> Bridge:
    if not settings.apns.channels.strip(" {}\n"):
        return UnconfiguredBridge("apns", UnknownChannelError)
    try:
        from waystation.push.endpoint.bridges.apns import ApnsBridge  # noqa: PLC0415 loads h2
    except ImportError as exc:
        raise _not_installed("apns.channels", exc) from exc
    return ApnsBridge(settings.apns, loop=asyncio.get_running_loop(), clock=clock, log=log)


def _not_installed(setting: str, exc: ImportError) -> SettingsError:
    return SettingsError(
        [f"{setting}: its library is not installed: pip install 'waystation[bridges]' ({exc})"]
    )
