"""The port of a role that operators look at."""

import msgspec
import pytest
import structlog
import structlog.testing

from waystation.app.ops_port import DEGRADED, ERROR, OK, Condition, OpsPort
from waystation.app.version import build
from waystation.base.clock import SystemClock
from waystation.base.http_message import Request, Response


class Role:
    def __init__(self) -> None:
        self.status = OK
        self.port = OpsPort(
            condition=lambda: Condition(self.status, {"links": 2}),
            metrics=lambda: b"waystation_links 2\n",
            clock=SystemClock(),
            log=structlog.get_logger(),
            pages={b"/map": self.map},
        )

    async def map(self) -> Response:
        return Response.of(200, b"a map", content_type=b"text/plain")

    async def ask(self, path: bytes, method: bytes = b"GET") -> Response:
        return await self.port.answer(Request(method, path, {}))


@pytest.mark.parametrize("status, code", [(OK, 200), (DEGRADED, 200), (ERROR, 503)])
@pytest.mark.parametrize("path", ["/__heartbeat__", "/health", "/status", "/readyz"])
async def test_a_heartbeat_tells_how_the_role_is_and_its_numbers(
    status: str, code: int, path: str
) -> None:
    role = Role()
    role.status = status
    answer = await role.ask(path.encode())
    assert answer.status == code
    assert msgspec.json.decode(answer.body) == {
        "status": status,
        "version": build().version,
        "links": 2,
    }


@pytest.mark.parametrize("path", ["/__lbheartbeat__", "/healthz"])
async def test_a_process_that_answers_says_so_whatever_its_role_thinks(path: str) -> None:
    role = Role()
    role.status = ERROR
    assert (await role.ask(path.encode())).status == 200


async def test_numbers_version_and_the_pages_of_the_role_are_there() -> None:
    role = Role()
    assert (await role.ask(b"/metrics")).body == b"waystation_links 2\n"
    assert msgspec.json.decode((await role.ask(b"/__version__")).body)["version"] == build().version
    assert (await role.ask(b"/map")).body == b"a map"
    assert (await role.ask(b"/other")).status == 404


async def test_the_alert_chain_can_be_tried_out() -> None:
    with structlog.testing.capture_logs() as lines:
        answer = await Role().ask(b"/__error__")
    assert answer.status == 418
    assert [(line["event"], line["log_level"]) for line in lines] == [("log_check", "critical")]


async def test_only_reading_is_allowed() -> None:
    answer = await Role().ask(b"/metrics", b"POST")
    assert answer.status == 405
    assert b"Allow: GET, HEAD" in answer.head
