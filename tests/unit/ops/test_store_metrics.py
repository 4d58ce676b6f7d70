from waystation.base.clock import ManualClock
from waystation.base.ids import new_uuid4
from waystation.ops.store_metrics import count_moves
from waystation.push.model import Uaid, UserAgent
from waystation.storage.dual.push import DualPushStore
from waystation.storage.dual.url import parse_dual_url
from waystation.storage.memory.push import MemoryPushStore
from waystation.telemetry.metrics import Metrics


async def test_moves_and_failures_of_two_stores_are_numbers() -> None:
    clock, metrics = ManualClock(), Metrics()
    url = parse_dual_url("dual:?primary=memory:&secondary=memory:")
    store = DualPushStore(MemoryPushStore(clock), MemoryPushStore(clock), url, clock)
    count_moves(store, metrics)
    for _ in range(3):
        uaid = Uaid(new_uuid4())
        await store.secondary.add_user_agent(UserAgent(uaid=uaid, connected_at_ms=1))
        await store.get_user_agent(uaid)
    store.stats().failed("fetch")
    metrics.snapshot("w", 0)

    assert metrics.counter("database_migrate").value == 3
    assert metrics.counter("database_dual_error", func="fetch").value == 1


def test_other_stores_have_nothing_to_count() -> None:
    metrics = Metrics()
    before = metrics.snapshot("w", 0)
    count_moves(MemoryPushStore(ManualClock()), metrics)

    assert metrics.snapshot("w", 0) == before
