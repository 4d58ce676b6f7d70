"""The measurements of presence on small numbers: they count, and they compare."""

import pytest

from benchmarks.presence_target import party_server
from benchmarks.scenarios import presence, presence_engine
from benchmarks.target import SMOKE

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("kind", ["bare", "ours"])
def test_every_workload_delivers(kind: str) -> None:
    with party_server(kind) as server:
        found = list(presence.run(server, "plain", SMOKE))
        quick = presence.latency(server, SMOKE)

    names = ["ping, plain", "fan-out, plain", "churn, plain"]
    assert [one.scenario.removesuffix(f": {kind}") for one in found][:3] == names
    assert all(one.operations > 0 for one in found)
    assert [one.against for one in found[:3]] == (
        [""] * 3 if kind == "bare" else [f"{name}: bare" for name in names]
    )
    assert quick.p50_ms is not None


def test_an_announcement_is_serialised_once() -> None:
    """Whatever the size of the party."""
    measured = presence_engine.run(SMOKE)

    assert measured.operations > 10
    assert "1.00 serialisations each" in measured.notes
