"""Any run of operations leaves the store on Redis looking like the memory store."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import invariant, run_state_machine_as_test

from tests.property.test_push_store_machine import UAIDS, PushStoreMachine
from tests.servers.redis import RedisServer, redis_server
from waystation.base.clock import ManualClock, SystemClock
from waystation.storage.memory.push import MemoryPushStore
from waystation.storage.redis.push import RedisPushStore
from waystation.storage.redis.url import parse_redis_url
from waystation.storage.settings import Store

__all__ = ["redis_server"]

pytestmark = pytest.mark.redis


class RedisMachine(PushStoreMachine):
    server: RedisServer

    def __init__(self) -> None:
        super().__init__()
        # A day ahead of Redis's own clock, which lets go of rows some time after their end.
        self.clock = ManualClock(now_ms=SystemClock().now_ms() + 86_400_000)
        self.model = MemoryPushStore(self.clock)

    async def open_store(self, clock: ManualClock) -> RedisPushStore:
        self.url = self.server.new_url()
        self.server.command("-n", self.url.rpartition("/")[2], "FLUSHDB")
        return await RedisPushStore.open(parse_redis_url(self.url), settings=Store(), clock=clock)

    @invariant()
    def rows_and_what_leads_to_them_agree(self) -> None:
        if hasattr(self, "store"):
            assert isinstance(self.store, RedisPushStore)
            for uaid in UAIDS:
                self.run(check_rows(self.store, self.store.keys.agent(uaid)))


async def check_rows(store: RedisPushStore, agent: str) -> None:
    """Every set that leads to a row has it, every row has a body, and the sweep knows of it."""
    members, ends, order, due = await store.session.run(
        "",
        (
            ("ZRANGE", f"autopush/msgs/{agent}", 0, -1),
            ("ZRANGE", f"autopush/msgs_exp/{agent}", 0, -1),
            ("ZRANGE", f"waystation/order/{agent}", 0, -1),
            ("ZSCORE", "waystation/due/", agent),
        ),
    )
    (bodies,) = await store.session.run("", (("KEYS", f"autopush/msg/{agent}/*"),))

    assert set(members) == set(ends) == set(order)
    assert {body.partition(f"{agent}/".encode())[2] for body in bodies} == set(members)
    assert not members or due is not None, "the sweep would not find it"


def test_redis_looks_like_the_model_after_any_operations(redis_server: RedisServer) -> None:
    machine = type("Machine", (RedisMachine,), {"server": redis_server})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=20,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
