"""`autoconnect` and `autoendpoint`: Autopush's settings, one store, one set of keys."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.e2e.platform import PORTS, until
from tests.e2e.wire_clients import UserAgent as WireAgent
from tests.e2e.wire_clients import accepted
from tests.ports import free_ports
from waystation.client.appserver import AppServer
from waystation.client.http import HttpClient
from waystation.client.push import UserAgent
from waystation.client.vapid import VapidKey

pytestmark = pytest.mark.e2e

WAIT_S = 60.0  # generous: the machine may be busy
BIN = Path(sys.executable).parent


class Daemons:
    """Both, on one data directory; their lines go to a file."""

    def __init__(self, directory: Path) -> None:
        self.base = free_ports(PORTS)
        self.directory = directory
        self.log = directory / "log"
        self.env = {
            "AUTOCONNECT__PORT": str(self.base),
            "AUTOCONNECT__ROUTER_PORT": str(self.base + 1),
            "AUTOCONNECT__ENDPOINT_HOSTNAME": "127.0.0.1",
            "AUTOCONNECT__ENDPOINT_PORT": str(self.base + 2),
            "AUTOCONNECT__DATA_DIR": str(directory / "data"),
            "AUTOEND__PORT": str(self.base + 2),
            "AUTOEND__DATA_DIR": str(directory / "data"),
            "AUTOEND__AUTH_KEYS": '["a-secret"]',
        }
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, **env: str) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [BIN / name], env={**os.environ, **self.env, **env}, stderr=log, cwd="/"
            )
        self.processes.append(process)
        return process

    def wait_for(self, port: int) -> float:
        """Seconds until somebody listens there."""
        began = time.monotonic()
        while time.monotonic() < began + WAIT_S:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), 1).close()
                return time.monotonic() - began
            assert all(p.poll() is None for p in self.processes), self.log.read_text()
            time.sleep(0.01)
        raise AssertionError(f"nobody listens on {port}: {self.log.read_text()}")

    def start_both(self) -> None:
        for name in ("autoconnect", "autoendpoint"):
            self.start(name)
        for port in range(self.base, self.base + 3):
            self.wait_for(port)

    @property
    def ws_url(self) -> str:
        return f"ws://127.0.0.1:{self.base}/"

    def ended(self, process: subprocess.Popen[bytes]) -> int:
        """Its exit code."""
        try:
            return process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it goes on: {self.log.read_text()}") from None

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait(WAIT_S)


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[Daemons]:
    daemons = Daemons(tmp_path)
    yield daemons
    daemons.end()


async def test_a_notification_crosses_from_one_to_the_other(daemons: Daemons) -> None:
    """Both open the same embedded store and the same keys, and the relay leads across."""
    daemons.start_both()
    vapid = VapidKey.generate()
    async with UserAgent(daemons.ws_url) as agent, AppServer(vapid) as app_server:
        await agent.connected(WAIT_S)
        subscription = await agent.subscribe(vapid.public_text)
        keys = subscription.public_keys
        await app_server.send(subscription.endpoint, keys, b"direct", ttl_s=0)
        direct = await agent.receive()

    assert subscription.endpoint.startswith(f"http://127.0.0.1:{daemons.base + 2}/wpush/v2/")
    assert direct.payload == b"direct"  # with TTL 0 it can only have been direct


async def test_what_is_posted_while_nobody_is_connected_waits_through_a_restart(
    daemons: Daemons,
) -> None:
    daemons.start_both()
    vapid = VapidKey.generate()
    agent = UserAgent(daemons.ws_url)
    async with agent, AppServer(vapid) as app_server:
        await agent.connected(WAIT_S)
        subscription = await agent.subscribe(vapid.public_text)
        state = agent._state
        await agent.close()
        await app_server.send(subscription.endpoint, subscription.public_keys, b"kept", ttl_s=600)
    for process in daemons.processes:
        process.kill()
        process.wait(WAIT_S)
    daemons.processes.clear()
    daemons.start_both()
    async with UserAgent(daemons.ws_url, state=state) as again:
        kept = await again.receive()

    assert kept.payload == b"kept"


def test_each_listens_soon_after_its_start(daemons: Daemons) -> None:
    """A second when the machine is its own; here others run beside it."""
    daemons.start("autoconnect")
    connect_s = daemons.wait_for(daemons.base)
    daemons.start("autoendpoint")
    endpoint_s = daemons.wait_for(daemons.base + 2)

    assert max(connect_s, endpoint_s) < 15.0


async def test_both_answer_the_health_routes(daemons: Daemons) -> None:
    daemons.start_both()
    async with HttpClient() as http:
        for port in range(daemons.base, daemons.base + 3):
            health = await http.request("GET", f"http://127.0.0.1:{port}/__heartbeat__")
            beat = await http.request("GET", f"http://127.0.0.1:{port}/__lbheartbeat__")

            assert health.status == beat.status == 200
            assert msgspec.json.decode(health.body)["status"] == "OK"
            assert beat.body == b""
        public = await http.request("GET", f"http://127.0.0.1:{daemons.base + 2}/metrics")
        internal = f"http://127.0.0.1:{daemons.base + 1}/metrics"
        stranger = await http.request("GET", internal)
        token = (daemons.directory / "data" / "keys" / "metrics_token").read_text().strip()
        scraper = await http.request("GET", internal, headers={"Authorization": f"Bearer {token}"})

    assert public.status == 404
    assert stranger.status == 401, "the daemons listen on all addresses"
    assert scraper.status == 200


@pytest.mark.parametrize("name", ["autoconnect", "autoendpoint"])
def test_sigterm_ends_it_with_code_zero(daemons: Daemons, name: str) -> None:
    process = daemons.start(name)
    daemons.wait_for(daemons.base if name == "autoconnect" else daemons.base + 2)
    process.send_signal(signal.SIGTERM)

    assert daemons.ended(process) == 0


EARLY = """
import os, signal, sys, weakref
from waystation.app.daemon import end_early

class Gone: pass

signal.signal(signal.SIGTERM, end_early)
gone = Gone()
seen = weakref.ref(gone, lambda _: os.kill(os.getpid(), signal.SIGTERM))
del gone
sys.exit(5)
"""


def test_sigterm_during_an_import_is_not_lost() -> None:
    """The import system tidies up in callbacks, where exceptions are ignored."""
    ended = subprocess.run([sys.executable, "-c", EARLY], check=False, timeout=WAIT_S)

    assert ended.returncode == 0


def test_without_auth_keys_the_endpoint_does_not_start_and_says_why(daemons: Daemons) -> None:
    process = daemons.start("autoendpoint", AUTOEND__AUTH_KEYS="[]")

    assert process.wait(WAIT_S) == 78
    assert "AUTOEND__AUTH_KEYS is empty" in daemons.log.read_text()


def test_a_key_that_is_no_key_is_refused(daemons: Daemons) -> None:
    process = daemons.start("autoconnect", AUTOCONNECT__CRYPTO_KEY='["short"]')

    assert process.wait(WAIT_S) == 78
    assert "crypto key 1" in daemons.log.read_text()


async def test_several_run_in_one_directory_and_a_killed_ones_journal_finds_a_successor(
    daemons: Daemons,
) -> None:
    """Each has a part of the directory for its journal; keys and the store are common."""
    first = daemons.start("autoconnect")
    daemons.wait_for(daemons.base)
    second_port = {
        "AUTOCONNECT__PORT": str(daemons.base + 5),
        "AUTOCONNECT__ROUTER_PORT": str(daemons.base + 6),
    }
    second = daemons.start("autoconnect", **second_port)
    daemons.wait_for(daemons.base + 5)
    daemons.start("autoendpoint")
    daemons.wait_for(daemons.base + 2)
    agent = WireAgent(f"ws://127.0.0.1:{daemons.base + 5}/")
    await agent.connect()
    await accepted(await agent.subscribe())
    unacked = await agent.notification()
    for process in (first, second):
        process.kill()
        process.wait(WAIT_S)
        daemons.processes.remove(process)
    daemons.start("autoconnect")
    daemons.wait_for(daemons.base)
    await agent.vanish()
    agent.url = daemons.ws_url
    await agent.connect()

    assert (await agent.notification())["version"] == unacked["version"]
    assert (daemons.directory / "data" / "part-2" / "inflight").is_dir()
    await agent.leave()


def test_a_daemon_is_refused_a_port_that_another_has_by_name(daemons: Daemons) -> None:
    daemons.start("autoconnect")
    daemons.wait_for(daemons.base)
    second = daemons.start("autoconnect", AUTOCONNECT__PORT=str(daemons.base + 5))

    assert second.wait(WAIT_S) == 1
    assert f"{daemons.base + 1} (connect.relay_port) is taken" in daemons.log.read_text()


def test_tracking_keys_that_are_none_only_warn(daemons: Daemons) -> None:
    """autopush-rs takes any text."""
    daemons.start("autoendpoint", AUTOEND__TRACKING_KEYS='["not a key"]')
    daemons.start("autoconnect", AUTOCONNECT__TRACKING_KEYS="nor this")
    until(lambda: daemons.log.read_text().count('"ready"') == 2)

    assert daemons.log.read_text().count("is not a VAPID public key") == 2


def test_a_port_that_is_taken_is_named(daemons: Daemons) -> None:
    with socket.create_server(("127.0.0.1", daemons.base + 2)):
        process = daemons.start("autoendpoint")

        assert process.wait(WAIT_S) == 1
        assert f"{daemons.base + 2} (endpoint.port) is taken" in daemons.log.read_text()


def test_unknown_names_are_logged_once_and_known_ones_from_a_file_hold(
    daemons: Daemons, tmp_path: Path
) -> None:
    config = tmp_path / "autoconnect.toml"
    config.write_text("no_such_thing = 1\nmsg_limit = 3\n")
    with daemons.log.open("ab") as log:
        daemons.processes.append(
            subprocess.Popen(
                [BIN / "autoconnect", "-c", config], env={**os.environ, **daemons.env}, stderr=log
            )
        )
    daemons.wait_for(daemons.base)
    until = time.monotonic() + WAIT_S
    while '"ready"' not in daemons.log.read_text() and time.monotonic() < until:
        time.sleep(0.02)
    lines = [msgspec.json.decode(line) for line in daemons.log.read_bytes().splitlines()]
    unknown = [line for line in lines if line["Fields"]["message"] == "settings.unknown"]

    assert [line["Fields"]["names"] for line in unknown] == [[f"no_such_thing in {config}"]]
    assert lines[0]["Type"] == "autoconnect:log"


async def test_the_ports_are_open_before_the_store_and_whoever_comes_early_is_answered(
    daemons: Daemons,
) -> None:
    """A client of a cloud may take seconds to load; here the store itself does not answer."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        store = f"postgres://push@127.0.0.1:{silent.getsockname()[1]}/push"
        process = daemons.start(
            "autoendpoint", AUTOEND__DB_DSN=store, AUTOEND__STORE__CONNECT_TIMEOUT_S="3"
        )
        daemons.wait_for(daemons.base + 2)
        early = socket.create_connection(("127.0.0.1", daemons.base + 2), WAIT_S)
        with early:
            early.sendall(b"GET /__lbheartbeat__ HTTP/1.1\r\nHost: h\r\n\r\n")
            ready_before = b"ready" in daemons.log.read_bytes()
            answer = await asyncio.to_thread(early.recv, 4096)

        assert not ready_before
        assert answer.startswith(b"HTTP/1.1 200 ")
        until(lambda: b'"ready"' in daemons.log.read_bytes())
        process.terminate()
        assert process.wait(WAIT_S) == 0
