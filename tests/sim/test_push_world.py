"""Nothing that was accepted is lost, whatever fails: whole worlds, one a seed.

Rerun a seed that failed, with its history:

    WAYSTATION_TEST_SEED=1234 pytest tests/sim/test_push_world.py -k asked_for
"""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.sim.push.world import PushWorld
from waystation.testing.loop import run_sim

SEEDS = 600  # in `make test`
SOAK_SEEDS = 10_000
CHUNK = 25
SOAK_CHUNK = 500
LINES_MAX = 400  # of the history of a seed that failed

KEPT = tomllib.loads(Path(__file__).with_name("seeds.toml").read_text())["push"]


def live_through(seed: int) -> PushWorld:
    world = PushWorld(seed)
    try:
        run_sim(world.main(), world.clock)
    except Exception as error:
        error.add_note(_report(world, [repr(error)]))
        raise
    return world


def check_seed(seed: int) -> None:
    world = live_through(seed)
    broken = world.broken_promises()
    if broken:
        pytest.fail(_report(world, broken), pytrace=False)


def _report(world: PushWorld, broken: list[str]) -> str:
    about = {post.uaid for post in world.posts.values() if _named(post.number, broken)}
    lines = world.history.lines(about or None)
    settings = world.settings
    return "\n".join(
        [
            f"seed {world.seed} broke {len(broken)} promises:",
            *(f"  {sentence}" for sentence in broken[:20]),
            f"delivery_window {settings.delivery_window}, stored_batch_max"
            f" {settings.stored_batch_max}, msg_limit {settings.msg_limit},"
            f" sort_keys {world.sort_keys}, journal {settings.inflight_journal},"
            f" {'skewed' if world.skewed else 'equal'} clocks",
            *(lines if len(lines) <= LINES_MAX else [*lines[:LINES_MAX], "…"]),
            "",
            f'rerun: WAYSTATION_TEST_SEED={world.seed} pytest "{__file__}" -k asked_for',
        ]
    )


def _named(number: int, broken: list[str]) -> bool:
    return any(f"#{number} " in f"{sentence} " for sentence in broken)


@pytest.mark.parametrize("kept", KEPT, ids=lambda kept: str(kept["seed"]))
def test_a_seed_that_once_found_a_bug_finds_none(kept: dict[str, int]) -> None:
    check_seed(kept["seed"])


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_nothing_accepted_is_lost(first: int) -> None:
    for seed in range(first, first + CHUNK):
        check_seed(seed)


@pytest.mark.soak
@pytest.mark.parametrize("first", range(SEEDS, SOAK_SEEDS, SOAK_CHUNK))
def test_nothing_accepted_is_lost_in_ten_thousand_worlds(first: int) -> None:
    for seed in range(first, min(first + SOAK_CHUNK, SOAK_SEEDS)):
        check_seed(seed)


def test_the_seed_that_was_asked_for() -> None:
    """`WAYSTATION_TEST_SEED` names it; without a name, the way of asking is tried with one."""
    check_seed(int(os.environ.get("WAYSTATION_TEST_SEED", "1")))


def test_worlds_are_busy_places() -> None:
    """A world in which little happens would find nothing."""
    worlds = [live_through(seed) for seed in range(10)]
    text = "\n".join(line for world in worlds for line in world.history.lines())

    accepted = sum(post.outcome == "accepted" for world in worlds for post in world.posts.values())
    assert accepted > 1000
    for happened in (
        "sends it directly",
        "sends it from storage",
        "row deleted",
        "handed back",
        "up again",
        "killed",
        "stopped",
        "busy",
        "failed after its effect",
        "an answer was not heard",
        "unregistered",
        "withdrawn",
        "vanishes",
    ):
        assert happened in text, happened


def test_the_same_seed_gives_the_same_history() -> None:
    """Also in another process, where hashes and addresses are different."""
    program = (
        "from tests.sim.test_push_world import live_through;"
        "print('\\n'.join(live_through(7).history.lines()))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    elsewhere = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[2],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )

    assert elsewhere.stdout.rstrip("\n") == "\n".join(live_through(7).history.lines())
