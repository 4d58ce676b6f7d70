"""A checker that never complains proves nothing: each of these mistakes must be found, and soon.

Every one of them was made by somebody before (webpush 1.3 and 13). They are planted here, by
subclasses of production code; production code has no switches for them.
"""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.sim.push.world import PushWorld
from waystation.base.clock import Clock
from waystation.push.connect import effects as do
from waystation.push.connect.driver import ConnectDriver
from waystation.push.connect.effects import Effect
from waystation.push.connect.session_context import SessionContext
from waystation.push.connect.unacked_saver import UnackedSaver
from waystation.push.connect.user_agent_connection import UserAgentConnection
from waystation.push.connect.window import DeliveryWindow, Pass
from waystation.push.endpoint.router import Outcome, Router
from waystation.push.milestone_writer import MilestoneWriter
from waystation.push.model import (
    MessageId,
    Notification,
    Replaced,
    Route,
    SortKey,
    Uaid,
    Update,
    UserAgent,
)
from waystation.push.store import PushStore
from waystation.push.wire.relay import Answer, Relay
from waystation.testing.faults import FaultyStore
from waystation.testing.loop import run_sim

SEEDS_MAX = 200


# --- endpoint ------------------------------------------------------------------------------------


class _RouterThatTellsFirst(Router):
    async def deliver(self, user_agent: UserAgent, notification: Notification) -> MessageId:
        uaid = user_agent.uaid
        if user_agent.node_id is not None:
            answer = await self._relay.push(user_agent.node_id, uaid, notification)
            if answer is Answer.TAKEN:
                return notification.message_id
            await self._refused(user_agent, answer)
        if notification.ttl_s > 0:
            await self._tell(uaid)
            await self._store.save(uaid, notification)
        return notification.message_id


class TellBeforeStore(PushWorld):
    def make_router(
        self, store: PushStore, relay: Relay, milestones: MilestoneWriter, **ports: Any
    ) -> Router:
        return _RouterThatTellsFirst(store, relay, milestones, **ports)


class _RouterThatNeverTells(Router):
    async def _tell(self, uaid: Uaid) -> Outcome:
        return Outcome.STORED


class NoSecondLook(PushWorld):
    def make_router(
        self, store: PushStore, relay: Relay, milestones: MilestoneWriter, **ports: Any
    ) -> Router:
        return _RouterThatNeverTells(store, relay, milestones, **ports)


class _RouterThatWritesOver(Router):
    async def _save_new(self, uaid: Uaid, notification: Notification, ids: Any) -> Notification:
        await self._store.save(uaid, notification)
        return notification


class TakenKeyWrittenOver(PushWorld):
    """T-1: two endpoint nodes use one millisecond of a channel, and one message is gone."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.sort_keys = "autopush"

    def make_router(
        self, store: PushStore, relay: Relay, milestones: MilestoneWriter, **ports: Any
    ) -> Router:
        return _RouterThatWritesOver(store, relay, milestones, **ports)


# --- store ---------------------------------------------------------------------------------------


class _StoreThatClearsAnyRoute(FaultyStore):
    async def clear_route(self, uaid: Uaid, seen: Route) -> bool:
        user_agent = await self.get_user_agent(uaid)
        if user_agent is None or user_agent.route is None:
            return False
        return await super().clear_route(uaid, user_agent.route)


class _WorldThatNeverPings(PushWorld):
    """A ping tick sets a lost route again, so these mistakes hide until the next one."""

    def __init__(self, seed: int, **options: Any) -> None:
        super().__init__(seed, **options)
        self.settings = msgspec.structs.replace(self.settings, auto_ping_interval_s=3600.0)


class UnconditionalClear(_WorldThatNeverPings):
    def make_store(self, source: str) -> FaultyStore:
        return _StoreThatClearsAnyRoute(self._store, self._store_luck, self.history, source)


class _StoreWithCursor(FaultyStore):
    cursors: dict[Uaid, str]

    async def fetch(
        self, uaid: Uaid, *, now_ms: int, after: SortKey | None, limit: int
    ) -> Sequence[Notification]:
        rows = await super().fetch(uaid, now_ms=now_ms, after=after, limit=1000)
        passed = self.cursors[uaid]
        return [r for r in rows if r.sort_key.startswith("01:") or r.sort_key > passed][:limit]

    async def forget(self, uaid: Uaid, rows: Sequence[tuple[SortKey, MessageId]]) -> int:
        for sort_key, _ in rows:
            if sort_key.startswith("02:"):
                self.cursors[uaid] = max(self.cursors[uaid], sort_key)
        return await super().forget(uaid, rows)


class CursorSkips(PushWorld):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._cursors: dict[Uaid, str] = defaultdict(str)

    def make_store(self, source: str) -> FaultyStore:
        store = _StoreWithCursor(self._store, self._store_luck, self.history, source)
        store.cursors = self._cursors
        return store


class _StoreThatForgetsAnything(FaultyStore):
    inner: Any

    async def forget(self, uaid: Uaid, rows: Sequence[tuple[SortKey, MessageId]]) -> int:
        held = self.inner._notifications.get(uaid, {})
        there = [(key, held[key].message_id) for key, _ in rows if key in held]
        return await super().forget(uaid, there)


class TopicForgottenUnconditionally(PushWorld):
    def make_store(self, source: str) -> FaultyStore:
        store = _StoreThatForgetsAnything(self._store, self._store_luck, self.history, source)
        store.inner = self._store
        return store


# --- connection node -----------------------------------------------------------------------------


class _DriverThatEntersLate(ConnectDriver):
    def _perform(self, client: UserAgentConnection, effects: list[Effect]) -> None:
        if any(isinstance(effect, do.Claim) for effect in effects):
            effects = [effect for effect in effects if not isinstance(effect, do.AddToRegistry)]
        super()._perform(client, effects)

    def _greeted(self, client: UserAgentConnection) -> None:
        assert client.session.uaid is not None
        self._registry.add(client.session.uaid, client)
        super()._greeted(client)


class RegisterAfterTheRow(_WorldThatNeverPings):
    def make_driver(self, terms: SessionContext, **ports: Any) -> ConnectDriver:
        return _DriverThatEntersLate(terms, **ports)


class _DriverThatForgets(ConnectDriver):
    async def _save_unacked(self, client: UserAgentConnection, effect: do.SaveUnacked) -> None:
        assert client.session.uaid is not None
        for notification in effect.notifications:
            if self._journal is not None:
                self._journal.settle(client.session.uaid, notification)


class ForgetOnDisconnect(PushWorld):
    def make_driver(self, terms: SessionContext, **ports: Any) -> ConnectDriver:
        return _DriverThatForgets(terms, **ports)


class _DriverThatDoesNotJournal(ConnectDriver):
    async def push(self, uaid: Uaid, notification: Notification | Update) -> Answer:
        journal, self._journal = self._journal, None
        try:
            return await super().push(uaid, notification)
        finally:
            self._journal = journal


class NothingInTheJournal(PushWorld):
    def make_driver(self, terms: SessionContext, **ports: Any) -> ConnectDriver:
        return _DriverThatDoesNotJournal(terms, **ports)


class JournalNotReplayed(PushWorld):
    async def replay(self, path: Path, saver: UnackedSaver) -> int:
        path.unlink(missing_ok=True)
        return 0


class _HandBackOverNewer(UnackedSaver):
    async def _save(
        self, uaid: Uaid, owed: Sequence[Notification | Update], replaced: list[Replaced]
    ) -> None:
        for notification in owed:
            assert isinstance(notification, Notification)
            await self._store.save(uaid, notification)


class HandBackOverNewerTopic(PushWorld):
    def make_unacked_saver(
        self, store: PushStore, relay: Relay, clock: Clock, **ports: Any
    ) -> UnackedSaver:
        return _HandBackOverNewer(
            store, relay, clock, concurrency=4, jitter=self.rng.random, **ports
        )


class _HandBackWithoutTelling(UnackedSaver):
    async def _tell(self, uaid: Uaid, connected_at_ms: int | None) -> None:
        pass


class HandBackWithoutTelling(PushWorld):
    def make_unacked_saver(
        self, store: PushStore, relay: Relay, clock: Clock, **ports: Any
    ) -> UnackedSaver:
        return _HandBackWithoutTelling(
            store, relay, clock, concurrency=4, jitter=self.rng.random, **ports
        )


class HandBackUnderTheOldKey(PushWorld):
    """With three-part keys another node's message may have that key by now."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.sort_keys = "autopush"

    def make_unacked_saver(
        self, store: PushStore, relay: Relay, clock: Clock, **ports: Any
    ) -> UnackedSaver:
        return UnackedSaver(store, relay, clock, concurrency=4, jitter=self.rng.random, **ports)


@pytest.mark.parametrize(
    "planted",
    [
        TellBeforeStore,
        NoSecondLook,
        TakenKeyWrittenOver,
        HandBackUnderTheOldKey,
        UnconditionalClear,
        CursorSkips,
        TopicForgottenUnconditionally,
        RegisterAfterTheRow,
        ForgetOnDisconnect,
        NothingInTheJournal,
        JournalNotReplayed,
        HandBackOverNewerTopic,
        HandBackWithoutTelling,
    ],
)
def test_a_planted_mistake_is_found(planted: type[PushWorld]) -> None:
    assert _first_seed_that_finds(planted) is not None


def test_a_window_that_forgets_to_look_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Told of something stored while busy, the node must look later (R1, rule 3)."""

    def check(self: DeliveryWindow) -> bool:
        if self._pass is Pass.NONE and not self.unacked:
            self._pass = Pass.DUE
            return True
        return False

    def refuse(self: DeliveryWindow) -> None:
        self._refused = True

    monkeypatch.setattr(DeliveryWindow, "check", check)
    monkeypatch.setattr(DeliveryWindow, "refuse", refuse)

    assert _first_seed_that_finds(PushWorld) is not None


def test_a_window_that_skips_what_was_not_acked_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass that goes on before all of its rows are acked would count them as done."""
    acked = DeliveryWindow.acked

    def acked_all(self: DeliveryWindow, updates: Any) -> list[Effect]:
        effects = acked(self, updates)
        if self._direct:
            self._direct.clear()
        return effects

    monkeypatch.setattr(DeliveryWindow, "acked", acked_all)

    assert _first_seed_that_finds(PushWorld) is not None


def _first_seed_that_finds(planted: type[PushWorld]) -> int | None:
    for seed in range(SEEDS_MAX):
        world = planted(seed)
        run_sim(world.main(), world.clock)
        if world.broken_promises():
            return seed
    return None
