"""Routes notifications: delivers them to the connection node of the user agent, or stores them.

Rule 1: store first, then read the route again, then tell the node. A user agent that reconnected or
        became idle in between is found by the second read, or reads storage itself.
Rule 2: a route is cleared only if it is still the one that failed. If the clear is not applied, the
        user agent has reconnected; that is not an error.
Rule 3: a stored notification is accepted even if telling the node fails. The exception is a user
        agent that was removed meanwhile.
Rule 4: with TTL 0 the notification is delivered directly or dropped; the answer is the same.
Rule 5: with Autopush's three-part keys another endpoint node may have used the same millisecond of
        the channel. The stored notification then gets the next millisecond and a new id, which the
        answer contains.
"""

import contextlib
import enum
from typing import Final

import msgspec

from waystation.base.errors import StoreUnavailableError, UnavailableError
from waystation.push.endpoint.observer import Observer
from waystation.push.errors import UserAgentLeftError
from waystation.push.milestone_writer import MilestoneWriter
from waystation.push.model import (
    MessageId,
    Milestone,
    Notification,
    Route,
    Uaid,
    Update,
    UserAgent,
)
from waystation.push.store import PushStore
from waystation.push.token import MessageIds
from waystation.push.wire.relay import Answer, Relay

KEYS_TRIED_MAX: Final = (
    100  # consecutive milliseconds of a channel; beyond that the sender must retry
)


class Outcome(enum.Enum):
    DIRECT = "direct"
    STORED = "stored"


class Router:
    """Delivers to user agents that connect by WebSocket."""

    def __init__(
        self,
        store: PushStore,
        relay: Relay,
        milestones: MilestoneWriter,
        observer: Observer | None = None,
        *,
        ids: MessageIds | None = None,
        own_node_id: str = "",
    ) -> None:
        """`ids` makes another key if one is in use. `own_node_id` is this worker's connection node;
        notifications for it are not counted as relayed."""
        self._store = store
        self._relay = relay
        self._milestones = milestones
        self._observer = observer or Observer()
        self._own_node_id = own_node_id
        self._shared_keys = ids if ids is not None and ids.shared else None

    async def deliver(self, user_agent: UserAgent, notification: Notification) -> MessageId:
        """Deliver or store. `user_agent` is the record as read for this request; its route is
        compared before a clear. Returns the final message id."""
        observer, uaid = self._observer, user_agent.uaid
        if user_agent.node_id is not None:
            if user_agent.node_id != self._own_node_id:
                observer.relayed(notification, user_agent.node_id)
            if notification.reliability_id is not None:
                self._milestones.note(notification, Milestone.INT_TRANSMITTED)
            answer = await self._relay.push(user_agent.node_id, uaid, notification)
            if answer is Answer.TAKEN:
                observer.taken(uaid, notification)
                return notification.message_id
            await self._refused(user_agent, answer)
            if notification.reliability_id is not None:
                self._milestones.note(notification, Milestone.RECEIVED)
        if notification.ttl_s == 0:
            observer.expired(notification)
            self._milestones.note(notification, Milestone.EXPIRED)
            return notification.message_id
        if self._shared_keys is None or notification.topic is not None:
            replaced = await self._store.save(uaid, notification)
            if replaced is not None:
                observer.superseded(replaced)
        else:
            notification = await self._save_new(uaid, notification, self._shared_keys)
        observer.stored(uaid, notification)
        self._milestones.note(notification, Milestone.STORED)
        await self._tell(uaid)
        return notification.message_id

    async def _save_new(
        self, uaid: Uaid, notification: Notification, ids: MessageIds
    ) -> Notification:
        for _ in range(KEYS_TRIED_MAX):
            if await self._store.save_new(uaid, notification):
                return notification
            before = notification
            message_id, sort_key = ids.again(uaid, before.channel_id, before.sort_key)
            notification = msgspec.structs.replace(before, message_id=message_id, sort_key=sort_key)
            self._observer.renamed(uaid, before, notification)
            self._milestones.note(notification, Milestone.RECEIVED)
        raise StoreUnavailableError(f"the next {KEYS_TRIED_MAX} sort keys are in use")

    async def deliver_update(self, user_agent: UserAgent, update: Update) -> Outcome:
        """SimplePush: the same steps for a version number."""
        uaid = user_agent.uaid
        if user_agent.node_id is not None:
            if user_agent.node_id != self._own_node_id:
                self._observer.relayed(update, user_agent.node_id)
            answer = await self._relay.push(user_agent.node_id, uaid, update)
            if answer is Answer.TAKEN:
                return Outcome.DIRECT
            await self._refused(user_agent, answer)
        # Not applied: a newer version is stored already.
        saved = await self._store.save_update(uaid, update)
        if saved.replaced is not None:
            self._observer.superseded(saved.replaced)
        if saved.applied:
            self._observer.stored(uaid, update)
        return await self._tell(uaid)

    async def _refused(self, user_agent: UserAgent, answer: Answer) -> None:
        route = user_agent.route
        assert route is not None
        match answer:
            case Answer.BUSY:
                self._observer.node_busy(user_agent.uaid, route.node_id)
            case Answer.ABSENT:
                self._observer.node_gone(user_agent.uaid, route.node_id)
                await self._clear(user_agent.uaid, route)
            case Answer.UNREACHABLE:
                self._observer.node_unreachable(user_agent.uaid, route.node_id)
                await self._clear(user_agent.uaid, route)
            case _:
                pass  # an unexpected answer: the node is alive, so the route stays

    async def _clear(self, uaid: Uaid, seen: Route) -> None:
        with contextlib.suppress(UnavailableError):  # the next POST tries again
            await self._store.clear_route(uaid, seen)

    async def _tell(self, uaid: Uaid) -> Outcome:
        try:
            user_agent = await self._store.get_user_agent(uaid)
        except UnavailableError:
            return Outcome.STORED  # the user agent reads it with its next connect
        if user_agent is None:
            raise UserAgentLeftError("User was deleted during routing")
        route = user_agent.route
        if route is None:
            return Outcome.STORED
        answer = await self._relay.check_stored(route.node_id, uaid)
        if answer is Answer.TAKEN:
            return Outcome.DIRECT
        if answer is Answer.UNREACHABLE:
            await self._clear(uaid, route)
        return Outcome.STORED
