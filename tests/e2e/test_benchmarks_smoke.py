"""The scenarios on a small server in memory: they count right, and they notice what is lost."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import side_by_side
from benchmarks.checkout import current
from benchmarks.floor import floor_server
from benchmarks.mixed_load import REALISTIC_SMOKE
from benchmarks.scenarios import (
    crowd,
    direct,
    floor,
    hello,
    idle,
    latency,
    realistic,
    stored,
    stores,
)
from benchmarks.scenarios.crowd import CROWD_SMOKE
from benchmarks.stores import places
from benchmarks.target import SMOKE, Target
from tests.e2e.small_server import SmallServer, small_server

pytestmark = pytest.mark.e2e


def target_of(server: SmallServer) -> Target:
    return Target(server.ws_url, server.endpoint_url, (os.getpid(),))


def test_direct_counts_what_was_acked() -> None:
    with small_server() as server:
        measurement = direct.run(target_of(server), SMOKE)

    assert measurement.operations > 10
    assert measurement.lost == 0
    assert measurement.cpu_us is not None
    assert measurement.p50_ms is not None
    assert measurement.p99_ms is not None
    assert measurement.p50_ms <= measurement.p99_ms


def test_with_new_tokens_no_token_is_used_twice() -> None:
    scale = SMOKE
    with small_server() as server:
        measurement = direct.run(target_of(server), scale, fresh=True)

    assert 0 < measurement.operations <= scale.tokens_per_s * scale.seconds + scale.app_servers
    assert measurement.scenario == "direct, new tokens"


def test_stored_gets_everything_back_on_reconnect() -> None:
    with small_server() as server:
        storing, catching_up = stored.run(target_of(server), SMOKE)

    assert storing.operations == catching_up.operations > 10
    assert storing.lost == 0


def test_a_loss_is_noticed() -> None:
    with small_server(lose_every=10) as server:
        storing, _ = stored.run(target_of(server), SMOKE)

    assert storing.lost is not None
    assert storing.lost == pytest.approx(storing.operations / 10, abs=2)


def test_realistic_counts_what_was_acked_and_stored() -> None:
    with small_server() as server:
        delivered, stored, back = realistic.run(target_of(server), REALISTIC_SMOKE)

    assert delivered.operations == REALISTIC_SMOKE.posts
    assert stored.operations == back.operations >= REALISTIC_SMOKE.stored_posts
    assert (delivered.lost, stored.lost) == (0, 0)
    assert delivered.cpu_us is not None
    assert "on a new connection" in delivered.notes


def test_a_loss_among_realistic_posts_is_noticed() -> None:
    with small_server(lose_every=10) as server:
        _, stored, _ = realistic.run(target_of(server), REALISTIC_SMOKE)

    assert stored.lost == pytest.approx(stored.operations / 10, abs=2)


def test_two_checkouts_take_turns() -> None:
    here = current()
    (found,) = side_by_side.run(here, here, ["realistic"], "smoke", 1)

    assert [one.row for one in found] == [realistic.DIRECT, realistic.STORED, realistic.CATCHING_UP]
    assert all(one.old > 0 and one.new > 0 and one.lost == 0 for one in found)


def test_one_in_flight_with_both_kinds_of_tokens() -> None:
    with small_server() as server:
        reused = latency.run(target_of(server), SMOKE)
        fresh = latency.run(target_of(server), SMOKE, fresh=True)

    assert reused.operations > 0
    assert fresh.operations == SMOKE.latency_posts


def test_hello_and_idle_count_connections() -> None:
    with small_server() as server:
        hellos = hello.run(target_of(server), SMOKE)
        held = idle.run(target_of(server), SMOKE)

    assert hellos.operations == SMOKE.hellos
    assert held.operations == SMOKE.idle
    assert held.kib is not None


def test_a_crowd_is_held_and_posted_to() -> None:
    with small_server() as server:
        held, direct_ones = crowd.run(target_of(server), CROWD_SMOKE)

    assert held.operations == CROWD_SMOKE.agents
    assert held.lost == 0
    assert direct_ones.operations > 0
    assert direct_ones.lost == 0


def test_a_server_whose_processes_are_not_ours_to_see_has_no_cpu() -> None:
    with small_server() as server:
        measurement = hello.run(Target(server.ws_url, server.endpoint_url), SMOKE)

    assert measurement.cpu_us is None


@pytest.mark.parametrize("kind", ["bare", "ours"])
def test_the_floor_answers_posts(kind: str) -> None:
    with floor_server(kind) as target:
        measurement = floor.run(target, SMOKE)

    assert measurement.operations > 10
    assert measurement.cpu_us is not None


@pytest.mark.parametrize("name", ["memory", "embedded"])
def test_stores_of_this_process_make_no_round_trips(name: str) -> None:
    with contextlib.ExitStack() as stack:
        (place,) = places([name], stack)
        measurements = stores.run(place, SMOKE)

    assert [one.scenario for one in measurements] == [
        f"{name}: POST, direct",
        f"{name}: hello",
        f"{name}: POST, stored",
    ]
    assert all(one.operations >= stores.IN_FLIGHT for one in measurements)
    assert all(one.cpu_us for one in measurements)
    assert {one.round_trips for one in measurements} == {None}


@pytest.mark.redis
def test_a_store_on_a_server_is_asked_as_seldom_as_can_be() -> None:
    """One round trip for a POST to somebody who is connected, three for a hello."""
    with contextlib.ExitStack() as stack:
        (place,) = places(["redis"], stack)
        measurements = stores.run(place, SMOKE)

    assert [one.round_trips for one in measurements] == [1, 3, 3]
    assert all(one.round_trips_loaded for one in measurements)


def test_a_store_of_somebody_else_is_left_as_it_was(tmp_path: Path) -> None:
    """By its URL: what was put in is taken out again."""
    url = f"embedded://{tmp_path}"
    with contextlib.ExitStack() as stack:
        (place,) = places([url], stack)
        stores.run(place, SMOKE)
    done = subprocess.run(
        [Path(sys.executable).parent / "waystation", "store", "check", "--store", url],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "no problems" in done.stdout
    counts = dict(line.split()[:2] for line in done.stdout.splitlines() if line.endswith(" rows"))
    assert counts["agents"] == counts["notifications"] == counts["payloads"] == "0"


def test_the_whole_tool_runs_on_a_real_server(tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    options = ["--smoke", "--rounds", "1", "--workers", "1", "--out", str(out), "--markdown", "-"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", *options],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    report = json.loads(out.read_text())
    scenarios = {summary["scenario"]: summary for summary in report["summaries"]}
    assert scenarios.keys() >= {
        "floor",
        "direct",
        "direct, new tokens",
        "stored",
        "stored, catching up",
        "one in flight",
        "one in flight, new tokens",
        "hello",
        "idle",
        "broadcast",
    }
    assert all(not summary["lost"] for summary in scenarios.values())
    assert scenarios["direct"]["floors"] > 1
    assert "| direct |" in done.stdout
