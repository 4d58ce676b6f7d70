"""Which machines share a push store."""

from pathlib import Path

import structlog
from structlog.testing import capture_logs

from waystation.app.machine_watch import MachineWatch, machine_id
from waystation.base.clock import ManualClock
from waystation.push.connect.broadcast_source import published_here
from waystation.storage.memory.push import MemoryPushStore

LOOPBACK = "http://127.0.0.1:8081"


async def looks(*watches: MachineWatch, clock: ManualClock, times: int = 1) -> list[str]:
    """The errors that are logged."""
    with capture_logs() as lines:
        for _ in range(times):
            for watch in watches:
                await watch.look()
            clock.advance(60)
    return [
        f"{line['event']} {line['relay_url']}" for line in lines if line["log_level"] == "error"
    ]


def watch(
    store: MemoryPushStore, name: str, clock: ManualClock, *, loopback_url: str = LOOPBACK
) -> MachineWatch:
    return MachineWatch(store, name, clock, structlog.get_logger(), loopback_url=loopback_url)


async def test_one_machine_alone_complains_of_nothing() -> None:
    """Two daemons on it are one machine, and so is one that was started again."""
    clock = ManualClock()
    store = MemoryPushStore(clock)
    here, beside = watch(store, "a", clock), watch(store, "a", clock)

    assert await looks(here, beside, clock=clock, times=3) == []


async def test_a_second_machine_is_told_of_once() -> None:
    """Whatever address it has itself: two that both have a loopback address find each other."""
    clock = ManualClock()
    store = MemoryPushStore(clock)
    here = watch(store, "a", clock)
    right = watch(store, "b", clock, loopback_url="")

    assert await looks(here, right, clock=clock, times=5) == [f"relay.second_machine {LOOPBACK}"]


async def test_a_machine_that_has_left_is_no_second_one() -> None:
    clock = ManualClock()
    store = MemoryPushStore(clock)
    await watch(store, "gone", clock).look()

    assert await looks(watch(store, "a", clock), clock=clock, times=5) == []


async def test_machines_are_no_broadcasts() -> None:
    clock = ManualClock()
    store = MemoryPushStore(clock)
    await watch(store, "a", clock).look()
    await store.publish_broadcast("news/daily", "v1")

    assert await published_here(store)() == {"news/daily": "v1"}


def test_containers_and_machines_have_ids_of_their_own(tmp_path: Path) -> None:
    installed = tmp_path / "machine-id"
    installed.write_text("abc\n")

    assert machine_id("a", installed) == machine_id("a", installed)
    assert len({machine_id(name, path) for name in "ab" for path in (installed, tmp_path)}) == 4
