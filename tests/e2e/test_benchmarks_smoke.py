"""The scenarios on a small server in memory: they count right, and they notice what is lost."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.floor import floor_server
from benchmarks.scenarios import direct, floor, hello, idle, latency, stored
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
