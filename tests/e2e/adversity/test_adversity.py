"""The whole platform under load while its disk fills, its descriptors run out, its processes are
stopped and its clock is set: nothing acknowledged is lost, nothing acked comes again but for what
promise 2 allows, and every role is still there at the end.

ADVERSITY_SEED repeats a run's choices (not the machine's timing).
"""

import asyncio
import os
import random
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.e2e.adversity.ground import SHIFT_MAX_S, Ground, small_disk
from tests.e2e.adversity.presence_load import PartyLoad
from tests.e2e.adversity.queue_load import QueueLoad
from tests.e2e.crowd import Crowd, going_on

pytestmark = pytest.mark.e2e

KINDS = (
    "a short disk",
    "a short disk and a kill",
    "a full disk",
    "a full disk and a kill",
    "no descriptors",
    "no descriptors and a kill",
    "a stopped worker",
    "a clock that is set",
)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk") as path:
        yield path


def seed_of_today() -> int:
    return int(os.environ.get("ADVERSITY_SEED") or random.SystemRandom().randrange(2**32))


def plan_of(rounds: int, chance: random.Random) -> list[str]:
    """Each kind at least once, in any order."""
    plan = [*KINDS, *(chance.choice(KINDS) for _ in range(rounds - len(KINDS)))]
    chance.shuffle(plan)
    return plan


async def broken_promises(disk: Path, scratch: Path, *, rounds: int) -> list[str]:
    """After that many rounds under load."""
    seed = seed_of_today()
    chance = random.Random(seed)
    plan = plan_of(rounds, chance)
    print(f"ADVERSITY_SEED={seed}: {', '.join(plan)}")
    ground = Ground(disk, scratch, chance)
    with ground.server as server:
        crowd = Crowd(server.ws_url, seed=seed, devices=10, app_servers=2)
        ground.told = crowd.witness.killed
        party = PartyLoad(server.presence_address, random.Random(seed))
        queues = QueueLoad(server.addresses["queue_address"])
        await crowd.subscribe()
        async with AsyncExitStack() as stack:
            await party.join(stack)
            await queues.open(stack)
            async with crowd.alive():
                async with crowd.posting(), going_on(party.visit()), queues.writing():
                    for kind in plan:
                        await ground.round(kind)
                        await asyncio.sleep(chance.uniform(0.0, 0.5))
                    ground.set_clock(SHIFT_MAX_S)  # forth, so that nobody has to wait for it
                    await ground.all_back()
                    await asyncio.sleep(1.0)
                await crowd.calm_down(60.0)
                await asyncio.sleep(1.5)  # acks are recorded
            broken = [
                *crowd.witness.verdict(),
                *queues.broken_promises(),
                *await party.broken_promises(),
            ]
        print(crowd.witness.summary())
        print(f"{queues.sent} messages through queues, {party.visits} visits of a party")

        deaths = [line for line in server.err if '"worker.died"' in line]
        if len(deaths) != ground.kills:
            broken += ["a worker died of itself", *deaths]
        assert crowd.witness.accepted > 5 * rounds
        assert queues.sent > rounds
        assert party.visits > rounds / 2
        broken += ground.missing()
        assert server.stop() == 0
        return broken


async def test_the_platform_survives_a_few_rounds(disk: Path, tmp_path: Path) -> None:
    assert await broken_promises(disk, tmp_path, rounds=len(KINDS)) == []


@pytest.mark.soak
async def test_the_platform_survives_a_hundred_rounds(disk: Path, tmp_path: Path) -> None:
    assert await broken_promises(disk, tmp_path, rounds=100) == []
