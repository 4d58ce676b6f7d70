"""Nothing that was accepted is lost while user agents are moved from month to month."""

import tomllib
from pathlib import Path

import pytest

from tests.sim.push.monthly_store import FaultyMonthlyStore, MonthlyStore, MonthlyWorld
from tests.sim.test_push_world import _report
from waystation.push.model import Notification, Uaid
from waystation.testing.faults import FaultyStore
from waystation.testing.loop import run_sim

SEEDS = 100
CHUNK = 25

KEPT = tomllib.loads(Path(__file__).with_name("seeds.toml").read_text())["monthly"]


def live_through(world: MonthlyWorld) -> list[str]:
    try:
        run_sim(world.main(), world.clock)
    except Exception as error:
        error.add_note(_report(world, [repr(error)]))
        raise
    return world.broken_promises()


@pytest.mark.parametrize("kept", KEPT, ids=lambda kept: str(kept["seed"]))
def test_a_seed_that_once_found_a_bug_finds_none(kept: dict[str, int]) -> None:
    assert live_through(MonthlyWorld(kept["seed"])) == []


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_nothing_accepted_is_lost(first: int) -> None:
    moves = 0
    for seed in range(first, first + CHUNK):
        world = MonthlyWorld(seed)
        broken = live_through(world)
        if broken:
            pytest.fail(_report(world, broken), pytrace=False)
        moves += world._store.moves

    assert moves > CHUNK, "user agents do move in these worlds"


class _StoreWithoutALastLook(FaultyMonthlyStore):
    async def _take_along(self, uaid: Uaid, source: int, target: int) -> None:
        await self._call("finish", uaid, self._monthly.finish(uaid, source))


class _StoreThatTrustsItsMemory(FaultyMonthlyStore):
    async def save(self, uaid: Uaid, notification: Notification) -> None:
        month = self._remembered.get(uaid, self._monthly.month())
        await self._call(
            "save",
            uaid,
            self._monthly.put_in(month, uaid, notification),
            lambda _: self._witness.saved(self._source, uaid, [notification], ghost=self.ghost),
        )


@pytest.mark.parametrize("mistaken", [_StoreWithoutALastLook, _StoreThatTrustsItsMemory])
def test_a_mistake_in_moving_is_found(mistaken: type[FaultyMonthlyStore]) -> None:
    class World(MonthlyWorld):
        def make_store(self, source: str) -> FaultyStore:
            assert isinstance(self._store, MonthlyStore)
            return mistaken(self._store, self, source)

    assert any(live_through(World(seed)) for seed in range(60))
