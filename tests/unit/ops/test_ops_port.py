"""The port of a role that operators look at."""

from pathlib import Path

import msgspec
import pytest
import structlog
import structlog.testing

from waystation.app.data_dir import DataDir
from waystation.app.settings import Metrics, Ops, Settings
from waystation.app.version import build
from waystation.base.clock import SystemClock
from waystation.net.http1.message import Request, Response
from waystation.ops.ops_port import DEGRADED, ERROR, OK, Condition, OpsPort


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

    async def ask(
        self, path: bytes, method: bytes = b"GET", headers: dict[bytes, bytes] | None = None
    ) -> Response:
        return await self.port.answer(Request(method, path, headers or {}))


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


async def listening_on(host: str, data_dir: Path, *, public: bool = False) -> Role:
    role = Role()
    DataDir(data_dir).make()
    settings = Settings(
        data_dir=data_dir,
        ops=Ops(host=host),
        metrics=Metrics(token="sesame", public=public),
    )
    await role.port.listen(settings, 0)
    await role.port.close()
    return role


async def test_elsewhere_than_on_loopback_numbers_and_pages_need_the_token(tmp_path: Path) -> None:
    role = await listening_on("0.0.0.0", tmp_path)
    statuses: dict[bytes, list[int]] = {}
    for path in (b"/metrics", b"/map", b"/__heartbeat__", b"/other"):
        answers = [
            await role.ask(path, headers=headers)
            for headers in (
                {},
                {b"authorization": b"Bearer wrong"},
                {b"authorization": b"Basic sesame"},
                {b"authorization": b"Bearer sesame\xc3\xa9"},
                {b"authorization": b"Bearer sesame"},
            )
        ]
        statuses[path] = [answer.status for answer in answers]

    refused = [401] * 4
    assert statuses == {
        b"/metrics": [*refused, 200],
        b"/map": [*refused, 200],
        b"/__heartbeat__": [*refused, 200],
        b"/other": [*refused, 404],
    }
    assert (await role.ask(b"/healthz")).status == 200
    assert (await role.ask(b"/__lbheartbeat__")).status == 200


async def test_public_metrics_need_no_token_and_pages_still_do(tmp_path: Path) -> None:
    role = await listening_on("0.0.0.0", tmp_path, public=True)

    assert (await role.ask(b"/metrics")).status == 200
    assert (await role.ask(b"/map")).status == 401


async def test_on_loopback_nobody_needs_a_token(tmp_path: Path) -> None:
    role = await listening_on("127.0.0.1", tmp_path)

    assert (await role.ask(b"/metrics")).status == 200
