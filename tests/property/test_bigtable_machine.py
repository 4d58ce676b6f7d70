"""Any run of operations leaves the store on Bigtable looking like the memory store."""

from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from tests.property.test_push_store_machine import PushStoreMachine, message_ids
from tests.servers.bigtable import BigtableEmulator, bigtable_emulator
from waystation.base.clock import ManualClock, SystemClock
from waystation.push.model import (
    USER_AGENT_LIFETIME_S,
    ChannelId,
    MessageId,
    Milestone,
    MilestoneNote,
    Recipient,
    Uaid,
    UserAgent,
)
from waystation.storage.bigtable.init import init_table
from waystation.storage.bigtable.push import BigtablePushStore
from waystation.storage.memory.push import MemoryPushStore
from waystation.storage.settings import Store
from waystation.testing.conformance.push_store import sweep_all

__all__ = ["bigtable_emulator"]

pytestmark = pytest.mark.bigtable


class WithoutRowVersions(BigtablePushStore):
    """The model has none, and they differ every time."""

    async def get_user_agent(self, uaid: Uaid) -> UserAgent | None:
        record = await super().get_user_agent(uaid)
        return None if record is None else msgspec.structs.replace(record, row_version=None)

    async def look_up(self, uaid: Uaid, channel_id: ChannelId) -> Recipient | None:
        found = await super().look_up(uaid, channel_id)
        if found is None:
            return None
        record = msgspec.structs.replace(found.user_agent, row_version=None)
        return Recipient(record, found.subscribed)


class BigtableMachine(PushStoreMachine):
    emulator: BigtableEmulator

    def __init__(self) -> None:
        super().__init__()
        # A day ahead of the emulator's own clock, by which it collects what has ended.
        self.clock = ManualClock(now_ms=SystemClock().now_ms() + 86_400_000)
        self.model = MemoryPushStore(self.clock)

    async def open_store(self, clock: ManualClock) -> BigtablePushStore:
        url = self.emulator.unmade_table()
        await init_table(url)
        store = await WithoutRowVersions.open(url, settings=Store(), clock=clock)
        assert isinstance(store, WithoutRowVersions)
        return store

    @rule(seconds=st.sampled_from([0.001, 0.4, 1, 10, 3600, USER_AGENT_LIFETIME_S / 2]))
    def wait(self, seconds: float) -> None:
        """What has ended is gone at once; the model has to be told so."""
        self.clock.advance(seconds)
        if hasattr(self, "store"):
            self.sweep(limit=50)

    def ask(self, operation: str, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        if operation == "save_if_newer":  # a row that has ended is none, also if it just came
            self.run(sweep_all(self.model, now_ms=self.clock.now_ms()))
        return super().ask(operation, *args, **kwargs)

    @rule(message_id=message_ids, milestones=st.lists(st.sampled_from(list(Milestone)), max_size=3))
    def note_milestones(self, message_id: MessageId, milestones: list[Milestone]) -> None:
        """Once for each message: here notes end one by one, in the model all of them at once."""
        if message_id in self.known:
            return
        now_ms = self.clock.now_ms()
        notes = [
            MilestoneNote(message_id, b"s" * 32, milestone, now_ms, now_ms + 60_000)
            for milestone in milestones
        ]
        self.known.add(message_id)
        self.both("note_milestones", notes)


def test_bigtable_looks_like_the_model_after_any_operations(
    bigtable_emulator: BigtableEmulator,
) -> None:
    machine: Any = type("Machine", (BigtableMachine,), {"emulator": bigtable_emulator})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=10,
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
