"""Health and diagnostic routes (webpush §8.1)."""

from collections.abc import Mapping

import msgspec
import pytest

from waystation.app.version import Build
from waystation.base.clock import ManualClock
from waystation.base.errors import UnavailableError
from waystation.net.http1.message import Request
from waystation.ops.health import Health, StoreProbe, health_response


class FakeStore:
    def __init__(self) -> None:
        self.trouble: Exception | None = None
        self.checks = 0

    async def check(self) -> None:
        self.checks += 1
        if self.trouble is not None:
            raise self.trouble

    async def count_milestones(self, *, now_ms: int) -> Mapping[str, int]:
        return {"received": 3}


class Lines:
    def __init__(self) -> None:
        self.written: list[str] = []

    def critical(self, event: str, /, **fields: object) -> None:
        self.written.append(event)


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


@pytest.fixture
def lines() -> Lines:
    return Lines()


@pytest.fixture
async def probe(store: FakeStore) -> StoreProbe:
    probe = StoreProbe(store, ManualClock())
    await probe.look()
    return probe


@pytest.fixture
def health(probe: StoreProbe, lines: Lines) -> Health:
    return Health(
        build=Build("src", "1.2", "abc", "7"),
        probe=probe,
        lines=lines,
        metrics=lambda: b"numbers 1\n",
        metrics_public=False,
        connections=lambda: 5,
        requests=lambda: 9,
    )


def body(answer: object) -> dict[str, object]:
    assert answer is not None
    return msgspec.json.decode(answer.body)  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("path", ["/__heartbeat__", "/health"])
def test_a_connection_node_tells_how_many_are_connected(health: Health, path: str) -> None:
    answer = health.answer("connect", "GET", path)

    assert answer is not None
    assert answer.status == 200
    assert body(answer) == {
        "status": "OK",
        "version": "1.2",
        "connections": 5,
        "reliability": "OK",
    }


def test_an_endpoint_node_tells_of_its_tables(health: Health) -> None:
    told = body(health.answer("endpoint", "GET", "/__heartbeat__"))

    assert told["router_table"] == told["message_table"] == {"status": "OK"}
    assert told["routers"] == {"apns": False, "fcm": False}
    assert told["request_count"] == 9


def test_an_endpoint_node_tells_which_bridges_work(probe: StoreProbe, lines: Lines) -> None:
    health = Health(
        build=Build("src", "1.2", "abc", "7"),
        probe=probe,
        lines=lines,
        metrics=lambda: b"",
        metrics_public=False,
        routers=lambda: {"apns": False, "fcm": True},
    )

    assert body(health.answer("endpoint", "GET", "/health"))["routers"] == {
        "apns": False,
        "fcm": True,
    }


async def test_a_store_that_does_not_answer_makes_it_503(
    health: Health, probe: StoreProbe, store: FakeStore
) -> None:
    store.trouble = UnavailableError("the disk is gone")
    await probe.look()
    answer = health.answer("endpoint", "GET", "/health")

    assert answer is not None
    assert answer.status == 503
    assert body(answer)["router_table"] == {"status": "NOT OK", "cause": "the disk is gone"}
    assert body(health.answer("connect", "GET", "/status"))["error"] == "the disk is gone"

    store.trouble = None
    await probe.look()
    recovered = health.answer("endpoint", "GET", "/health")

    assert recovered is not None
    assert recovered.status == 200


def test_no_answer_asks_the_store(health: Health, store: FakeStore) -> None:
    asked = store.checks
    for path in ("/__lbheartbeat__", "/__heartbeat__", "/status", "/__milestones__"):
        health.answer("endpoint", "GET", path)

    assert store.checks == asked


def test_the_load_balancers_heartbeat_is_200_and_empty_whatever_the_store_does(
    health: Health, probe: StoreProbe
) -> None:
    probe.trouble = "gone"
    answer = health.answer("connect", "GET", "/__lbheartbeat__")

    assert answer is not None
    assert (answer.status, answer.body) == (200, b"")


def test_the_version_route_has_the_keys_of_autopush(health: Health) -> None:
    assert body(health.answer("connect", "GET", "/__version__")) == {
        "source": "src",
        "version": "1.2",
        "commit": "abc",
        "build": "7",
    }


@pytest.mark.parametrize(
    "role, path", [("connect", "/__error__"), ("connect", "/v1/err/crit"), ("endpoint", "/v1/err")]
)
def test_the_error_routes_try_out_the_alert_chain(
    health: Health, lines: Lines, role: str, path: str
) -> None:
    answer = health.answer(role, "GET", path)  # pyright: ignore[reportArgumentType]

    assert answer is not None
    assert answer.status == 418
    assert body(answer)["errno"] == 999
    assert lines.written == ["log_check"]


def test_metrics_are_not_public_unless_made_so(health: Health) -> None:
    assert health.answer("endpoint", "GET", "/metrics") is None
    internal = health.answer("connect", "GET", "/metrics", internal=True)

    assert internal is not None
    assert internal.body.startswith(b"numbers")
    assert b'autopush_reliability{state="received"} 3' in internal.body


def test_milestones_are_counted_by_state(health: Health) -> None:
    assert body(health.answer("endpoint", "GET", "/__milestones__")) == {"received": 3}


def test_other_paths_and_methods_are_somebody_elses(health: Health) -> None:
    assert health.answer("connect", "GET", "/push/x") is None
    assert health.answer("connect", "POST", "/health") is None


@pytest.mark.parametrize("method, path", [(b"GET", b"/\x80\xff"), (b"G\xe9T", b"/__version__")])
def test_bytes_that_are_no_text_are_no_health_route(
    health: Health, method: bytes, path: bytes
) -> None:
    """Found by throwing bytes at a live relay port."""
    assert health_response(health, "connect", Request(method, path, {}), internal=True) is None
