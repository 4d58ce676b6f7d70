"""Delivers notifications to user agents behind a bridge (webpush §7).

Rule 1: the sender gets the vendor's result: nothing is stored and nothing is retried.
Rule 2: a user agent that its vendor does not know is removed, unless its device token has changed
        meanwhile; then the sender is asked to send again.
Rule 3: if the bridge is not configured on this node, the user agent stays, because another node may
        have the bridge.
"""

from collections.abc import Mapping
from typing import Any

from waystation.base.clock import Clock
from waystation.push.endpoint.bridges.bridge import Bridge, app_id_of, token_of
from waystation.push.endpoint.observer import Observer
from waystation.push.errors import BridgeGoneError, LostRaceError, UnknownRouterTypeError
from waystation.push.milestone_writer import MilestoneWriter
from waystation.push.model import Milestone, Notification, UserAgent
from waystation.push.store import PushStore

Bridges = Mapping[str, Bridge]  # by router type


class BridgeRouter:
    """Delivers to user agents behind a bridge."""

    def __init__(
        self,
        bridges: Bridges,
        *,
        store: PushStore,
        milestones: MilestoneWriter,
        clock: Clock,
        observer: Observer | None = None,
    ) -> None:
        self._bridges = bridges
        self._store = store
        self._milestones = milestones
        self._clock = clock
        self._observer = observer or Observer()

    async def deliver(self, user_agent: UserAgent, notification: Notification) -> None:
        """Returns when the vendor has accepted the notification."""
        via = user_agent.router_type
        data = user_agent.router_data or {}
        began = self._clock.mono()
        try:
            bridge = self._bridges.get(via)
            if bridge is None:
                raise UnknownRouterTypeError(f"The bridge {via} is not configured on this server")
            code = await bridge.send(data, notification)
        except Exception as error:
            app_id, took_s = _app_of(data), self._clock.mono() - began
            self._observer.bridge_failed(notification, via, app_id, error, took_s)
            if isinstance(error, BridgeGoneError):
                await self._forget(user_agent)
            raise
        app_id, took_s = _app_of(data), self._clock.mono() - began
        self._observer.bridged(notification, via, app_id, code, took_s)
        self._milestones.note(notification, Milestone.BRIDGE_TRANSMITTED)

    async def _forget(self, seen: UserAgent) -> None:
        """Remove the user agent (rule 2). A store error goes to the sender, whose retry then
        removes it."""
        found = await self._store.get_user_agent(seen.uaid)
        if found is None:
            return
        held = found.router_type, token_of(found.router_data or {})
        if held != (seen.router_type, token_of(seen.router_data or {})):
            raise LostRaceError("The device token has just changed, please send again")
        self._observer.bridge_token_gone(seen.uaid, seen.router_type)
        if await self._store.remove_user_agent(seen.uaid):
            self._observer.user_agent_dropped(seen.uaid)


def _app_of(data: Mapping[str, Any]) -> str:
    """The app in metrics: the app id of FCM, the release channel of APNs."""
    channel = data.get("rel_channel")
    return channel if isinstance(channel, str) else app_id_of(data) or ""
