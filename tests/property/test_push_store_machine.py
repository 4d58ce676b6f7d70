"""Any run of operations leaves the embedded store looking like the memory store.

The memory store is the model. After every step both are asked everything a service could ask;
portions of a fetch may differ in size, so whole passes are compared.
"""

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from waystation.base.clock import ManualClock
from waystation.base.ids import dashed
from waystation.push.model import (
    USER_AGENT_LIFETIME_S,
    ChannelId,
    HandedBack,
    MessageId,
    Milestone,
    MilestoneNote,
    Notification,
    Replaced,
    Route,
    SortKey,
    Uaid,
    Update,
    UserAgent,
)
from waystation.push.store import PushStore
from waystation.storage.embedded.backup import backup_stores, restore_stores
from waystation.storage.embedded.check import check_store
from waystation.storage.embedded.push import EmbeddedPushStore
from waystation.storage.memory.push import MemoryPushStore
from waystation.storage.settings import Store
from waystation.testing.conformance.push_store import fetch_all, sweep_all

T = TypeVar("T")

# Few of each, and close neighbours, so that operations meet.
UAIDS = [Uaid(bytes(15) + bytes([n])) for n in (0, 1, 255)]
CHANNELS = [ChannelId(bytes(15) + bytes([n])) for n in (0, 7, 255)]
NODES = ["http://a:8081", "http://b:8081"]
STORE = Store(map_bytes=64 << 20, sync=False)

uaids = st.sampled_from(UAIDS)
channels = st.sampled_from(CHANNELS)
ttls_s = st.sampled_from([1, 5, 60, 3600])
message_ids = st.sampled_from([MessageId(f"gAAAAA{n}") for n in range(4)])


class PushStoreMachine(RuleBasedStateMachine):
    """`open_store` is what a backend brings."""

    async def open_store(self, clock: ManualClock) -> PushStore:
        raise AssertionError("a backend's machine opens its own store")

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = ManualClock()
        self.model = MemoryPushStore(self.clock)
        self.known: set[MessageId] = set()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    @initialize()
    def open(self) -> None:
        self.store = self.run(self.open_store(self.clock))

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.run(self.store.close())
        self.loop.close()

    def ask(self, operation: str, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """The model's answer and the store's."""
        expected = self.run(getattr(self.model, operation)(*args, **kwargs))
        return expected, self.run(getattr(self.store, operation)(*args, **kwargs))

    def both(self, operation: str, *args: Any, **kwargs: Any) -> Any:
        expected, answer = self.ask(operation, *args, **kwargs)
        assert answer == expected, operation
        return expected

    # Time

    @rule(seconds=st.sampled_from([0.001, 0.4, 1, 10, 3600, USER_AGENT_LIFETIME_S / 2]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(limit=st.sampled_from([1, 2, 50]))
    def sweep(self, limit: int) -> None:
        now_ms = self.clock.now_ms()
        self.run(sweep_all(self.store, now_ms=now_ms, limit=limit))
        self.run(sweep_all(self.model, now_ms=now_ms, limit=limit))

    # User agents

    @rule(uaid=uaids, node=st.sampled_from([*NODES, None]), ago_ms=st.integers(0, 3))
    def add_user_agent(self, uaid: Uaid, node: str | None, ago_ms: int) -> None:
        connected_at_ms = self.clock.now_ms() - ago_ms
        self.both(
            "add_user_agent",
            UserAgent(uaid=uaid, connected_at_ms=connected_at_ms, node_id=node),
        )

    @rule(uaid=uaids, node=st.sampled_from(NODES), ago_ms=st.integers(0, 3))
    def claim_route(self, uaid: Uaid, node: str, ago_ms: int) -> None:
        connected_at_ms = self.clock.now_ms() - ago_ms
        record = UserAgent(
            uaid=uaid, connected_at_ms=connected_at_ms, node_id=node, router_data={"n": ago_ms}
        )
        self.both("claim_route", record)

    @rule(uaid=uaids, node=st.sampled_from(NODES), ago_ms=st.integers(0, 3), really=st.booleans())
    def clear_route(self, uaid: Uaid, node: str, ago_ms: int, really: bool) -> None:
        record = self.both("get_user_agent", uaid)
        seen = Route(node, self.clock.now_ms() - ago_ms)
        if really and record is not None and record.route is not None:
            seen = record.route
        self.both("clear_route", uaid, seen)

    @rule(uaid=uaids)
    def remove_user_agent(self, uaid: Uaid) -> None:
        self.both("remove_user_agent", uaid)

    # Subscriptions

    @rule(uaid=uaids, channel_id=channels, channels_max=st.integers(1, 3))
    def add_channel(self, uaid: Uaid, channel_id: ChannelId, channels_max: int) -> None:
        self.both("add_channel", uaid, channel_id, channels_max=channels_max)

    @rule(uaid=uaids, channel_id=channels)
    def remove_channel(self, uaid: Uaid, channel_id: ChannelId) -> None:
        self.both("remove_channel", uaid, channel_id)

    # Notifications

    def notification(
        self, channel_id: ChannelId, message_id: MessageId, ttl_s: int, topic: str | None
    ) -> Notification:
        now_ms = self.clock.now_ms()
        place = f"02:{now_ms}:{dashed(channel_id)}:0"
        if topic is not None:
            place = f"01:{dashed(channel_id)}:{topic}"
        return Notification(
            channel_id, message_id, SortKey(place), now_ms, ttl_s, topic=topic, data="x" * ttl_s
        )

    @rule(
        uaid=uaids,
        channel_id=channels,
        message_id=message_ids,
        ttl_s=ttls_s,
        topic=st.sampled_from([None, "t", "u"]),
    )
    def save(
        self,
        uaid: Uaid,
        channel_id: ChannelId,
        message_id: MessageId,
        ttl_s: int,
        topic: str | None,
    ) -> None:
        notification = self.notification(channel_id, message_id, ttl_s, topic)
        now_ms = self.clock.now_ms()
        waiting = self.run(fetch_all(self.model, uaid, now_ms=now_ms))
        held = next((row for row in waiting if row.sort_key == notification.sort_key), None)
        self.run(self.model.save(uaid, notification))
        told = self.run(self.store.save(uaid, notification))
        if held is not None:
            assert told == notification.replaces(held)
        elif told is not None:  # nobody waited for it any more
            assert topic is not None
            assert told.message_id != message_id

    @rule(
        uaid=uaids,
        rows=st.lists(
            st.tuples(channels, message_ids, ttls_s, st.sampled_from([None, "t", "u"])), max_size=3
        ),
        ago_s=st.integers(0, 2),
    )
    def hand_back(
        self, uaid: Uaid, rows: list[tuple[ChannelId, MessageId, int, str | None]], ago_s: int
    ) -> None:
        handed = [self.notification(*row) for row in rows]
        handed = [
            Notification(
                row.channel_id,
                row.message_id,
                row.sort_key,
                row.accepted_at_ms - ago_s * 1000,
                row.ttl_s,
                topic=row.topic,
            )
            for row in handed
        ]
        expected, told = self.ask("save_if_newer", uaid, handed)
        assert told.written == expected.written
        assert self.missed(told) == self.missed(expected)

    def missed(self, handed_back: HandedBack) -> list[Replaced]:
        """Those that somebody still waited for; who is told first is nobody's concern."""
        now_ms = self.clock.now_ms()
        waited_for = [one for one in handed_back.replaced if not one.expired(now_ms)]
        return sorted(waited_for, key=msgspec.structs.astuple)

    @rule(uaid=uaids, data=st.data(), wrong=st.booleans())
    def forget(self, uaid: Uaid, data: st.DataObject, wrong: bool) -> None:
        rows = self.run(fetch_all(self.model, uaid, now_ms=self.clock.now_ms()))
        chosen = data.draw(st.lists(st.sampled_from(rows), max_size=3)) if rows else []
        acked = [(row.sort_key, MessageId("other") if wrong else row.message_id) for row in chosen]
        self.both("forget", uaid, acked)

    # SimplePush, broadcasts

    @rule(
        uaid=uaids,
        channel_id=channels,
        version=st.sampled_from([0, 1, 2, 1 << 70]),
        at_ms=st.sampled_from([0, 1_794_000_000_123, 1_794_000_009_456]),
    )
    def save_update(self, uaid: Uaid, channel_id: ChannelId, version: int, at_ms: int) -> None:
        self.both("save_update", uaid, Update(channel_id, version, accepted_at_ms=at_ms))

    @rule(uaid=uaids, channel_id=channels, version=st.sampled_from([0, 1, 2, 1 << 70]))
    def forget_update(self, uaid: Uaid, channel_id: ChannelId, version: int) -> None:
        self.both("forget_update", uaid, channel_id, version)

    @rule(broadcast_id=st.sampled_from("ab"), version=st.sampled_from(["v1", "v2"]))
    def publish_broadcast(self, broadcast_id: str, version: str) -> None:
        self.both("publish_broadcast", broadcast_id, version)

    # Statuses and tracking

    @rule(
        message_id=message_ids,
        milestones=st.lists(st.sampled_from(list(Milestone)), max_size=3),
        keep_s=st.sampled_from([1, 60]),
    )
    def note_milestones(
        self, message_id: MessageId, milestones: list[Milestone], keep_s: int
    ) -> None:
        now_ms = self.clock.now_ms()
        notes = [
            MilestoneNote(message_id, b"s" * 32, milestone, now_ms, now_ms + keep_s * 1000)
            for milestone in milestones
        ]
        self.known.add(message_id)
        self.both("note_milestones", notes)

    @rule(
        reliability_id=st.sampled_from(["", "r", "r" * 200]),
        milestone=st.sampled_from(list(Milestone)),
        ttl_s=ttls_s,
    )
    def track(self, reliability_id: str, milestone: Milestone, ttl_s: int) -> None:
        now_ms = self.clock.now_ms()
        self.both(
            "track", reliability_id, milestone, at_ms=now_ms, expires_at_ms=now_ms + ttl_s * 1000
        )

    # What can be seen

    @invariant()
    def both_look_alike(self) -> None:
        if not hasattr(self, "store"):
            return
        now_ms = self.clock.now_ms()
        for uaid in UAIDS:
            self.both("get_user_agent", uaid)
            self.both("get_channels", uaid)
            self.both("fetch_updates", uaid, limit=2)
            for channel_id in CHANNELS:
                self.both("look_up", uaid, channel_id)
            for limit in (1, 3):
                found = self.run(fetch_all(self.store, uaid, now_ms=now_ms, limit=limit))
                assert found == self.run(fetch_all(self.model, uaid, now_ms=now_ms))
        for message_id in self.known:
            self.both("get_status", message_id, now_ms=now_ms)
        self.both("get_broadcasts")
        self.both("count_milestones", now_ms=now_ms)


class EmbeddedMachine(PushStoreMachine):
    async def open_store(self, clock: ManualClock) -> EmbeddedPushStore:
        self.folder = Path(tempfile.mkdtemp(prefix="push-machine-"))
        return await EmbeddedPushStore.open(self.folder / "push", settings=STORE, clock=clock)

    @rule()
    def open_again(self) -> None:
        self.run(self.store.close())
        self.store = self.run(
            EmbeddedPushStore.open(self.folder / "push", settings=STORE, clock=self.clock)
        )

    @rule()
    def save_and_bring_back(self) -> None:
        assert isinstance(self.store, EmbeddedPushStore)
        saved = self.folder / "saved"
        backup_stores([("push", self.store.env)], saved)
        self.run(self.store.close())
        restore_stores(saved, {"push": self.folder / "push"}, settings=STORE, force=True)
        saved.unlink()
        self.open_again()

    @invariant()
    def rows_and_what_leads_to_them_agree(self) -> None:
        if hasattr(self, "store"):
            assert isinstance(self.store, EmbeddedPushStore)
            assert check_store(self.store.env).problems == []

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)


@pytest.mark.parametrize("machine", [EmbeddedMachine])
def test_the_store_looks_like_the_model_after_any_operations(
    machine: type[PushStoreMachine],
) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=30,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
