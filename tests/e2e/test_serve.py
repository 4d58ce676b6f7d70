"""`waystation serve` as a person and a service manager see it."""

import asyncio
import errno
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from cryptography import x509

from tests.certificates import self_signed
from tests.e2e.platform import PUSH_ROLES
from tests.ports import free_ports
from waystation.app.data_dir import DataDir
from waystation.app.roles import PORTS, number_of
from waystation.app.server_info import ServerInfo, read_server_info
from waystation.app.settings import load_settings
from waystation.client.appserver import AppServer
from waystation.client.http import HttpClient
from waystation.client.local_server import LocalServer, ServerDidNotStartError
from waystation.client.push import UserAgent
from waystation.client.subscriptions import AgentState
from waystation.client.vapid import VapidKey
from waystation.console.model import ServerStatus
from waystation.queue.control import GREETING

pytestmark = pytest.mark.e2e

WAIT_S = 30.0
# Addresses that the tests below compare and never connect to.
PUBLIC_NAMES = {
    "WAYSTATION_ENDPOINT__URL": "https://updates.example.org",
    "WAYSTATION_QUEUE__HOSTS": "smp.example.org",
}
COMMAND = [sys.executable, "-m", "waystation.cli.main"]


def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    directory = tmp_path_factory.mktemp("serve") / "data"
    with LocalServer(directory, options=("--workers", "2")) as server:
        yield server


def told(server: LocalServer) -> ServerInfo:
    serving = read_server_info(DataDir(server.data_dir))
    assert serving is not None
    return serving


async def get(url: str) -> tuple[int, bytes]:
    async with HttpClient() as http:
        answer = await http.request("GET", url)
        return answer.status, answer.body


def test_it_says_what_listens_where_and_what_firefox_needs(server: LocalServer) -> None:
    lines = "\n".join(server.lines)

    assert lines.count("waystation is ready") == 1
    for address in (server.ws_url, server.relay_url, server.endpoint_url, server.console_url):
        assert address in lines
    assert "dom.push.serverURL" in lines
    assert "First start: made crypto_keys" in lines


def test_the_addresses_in_force_are_written_down(server: LocalServer) -> None:
    serving = told(server)

    assert serving.pid == server.pid
    assert serving.workers == 2
    assert serving.connect_url == f"{server.ws_url}/"
    assert serving.endpoint_url == server.endpoint_url
    assert serving.ports["console.port"] == server.port_base + 3


async def test_the_console_shows_every_worker(server: LocalServer) -> None:
    async def status() -> ServerStatus:
        _, body = await get(f"{server.console_url}/v1/status")
        return msgspec.json.decode(body, type=ServerStatus)

    shown = await status()
    for _ in range(100):  # each reports within a second of its start
        if {worker.name for worker in shown.workers} >= {"push.0", "push.1", "queue.0"}:
            break
        await asyncio.sleep(0.1)
        shown = await status()
    page = (await get(f"{server.console_url}/"))[1].decode()

    assert {worker.name for worker in shown.workers} >= {"push.0", "push.1", "queue.0"}
    assert shown.missing == ()
    assert "All is well." in page


async def test_metrics_of_the_push_workers_are_one_exposition(server: LocalServer) -> None:
    status, body = await get(f"{server.relay_url}/metrics")

    assert status == 200
    assert body.count(b"# TYPE waystation_ua_connections gauge") == 1
    assert b'worker="push.0"' in body
    assert b'worker="push.1"' in body


async def metrics_pages(server: LocalServer) -> list[str]:
    """Of push, console, queue and presence."""
    ports = told(server).ports
    urls = [server.relay_url, server.console_url] + [
        f"http://127.0.0.1:{ports[name]}" for name in ("queue.ops_port", "presence.ops_port")
    ]
    return [(await get(f"{url}/metrics"))[1].decode() for url in urls]


async def test_each_series_is_served_by_one_port(server: LocalServer) -> None:
    """So that a sum over all scraped ports counts nothing twice; gauges bear their worker."""
    pages = await metrics_pages(server)
    workers = [{*re.findall(r'worker="(\w+)\.', page)} for page in pages]
    written = [page.count("\nwaystation_events_written_total ") for page in pages]

    assert workers == [{"push"}, {"console"}, {"queue"}, {"presence"}]
    assert written == [1, 1, 1, 1], "each counts the events of its own processes"
    assert ["autopush_reliability" in page for page in pages] == [True, False, False, False]


async def test_only_push_workers_count_user_agents(server: LocalServer) -> None:
    """Streams of parties and connections of the queue service are none."""
    pages = await metrics_pages(server)
    counting = re.findall(r'ua_connections\{.*?worker="([\w.]+)"', "".join(pages))

    assert {*counting} == {"push.0", "push.1"}


async def test_the_metrics_of_presence_have_the_prefix_of_all(server: LocalServer) -> None:
    names = {
        name
        for page in await metrics_pages(server)
        for name in re.findall(r"^# TYPE (\S*presence_\S+)", page, re.MULTILINE)
    }

    assert "waystation_presence_sessions" in names
    assert not {name for name in names if not name.startswith("waystation_presence_")}


async def test_open_streams_of_presence_are_labelled_as_the_reference_says(
    server: LocalServer,
) -> None:
    text = (Path(__file__).parents[2] / "docs/reference/metrics.md").read_text()
    (described,) = (row for row in text.splitlines() if "presence_streams`" in row)
    page = (await metrics_pages(server))[3]
    kinds = {*re.findall(r'presence_streams\{.*?kind="(\w+)"', page)}

    assert kinds
    assert {kind for kind in kinds if kind not in described} == set()


def test_a_second_server_on_the_same_directory_is_refused(server: LocalServer) -> None:
    second = run("serve", "--data-dir", str(server.data_dir), "--port-base", "0")

    assert second.returncode == 78
    assert f"process {server.pid} already runs the role connect" in second.stderr


@pytest.mark.parametrize("name", ["cert", "key"])
def test_a_missing_certificate_ends_the_start_before_keys_are_made(
    tmp_path: Path, name: str
) -> None:
    cert, key = self_signed(tmp_path)
    files = {"cert": str(cert), "key": str(key)} | {name: str(tmp_path / "missing.pem")}
    done = run(
        *("serve", "--data-dir", str(tmp_path / "data"), "--port-base", "0"),
        WAYSTATION_TLS__CERT=files["cert"],
        WAYSTATION_TLS__KEY=files["key"],
    )

    assert done.returncode == 78
    assert "missing.pem does not exist" in done.stderr
    assert not (tmp_path / "data").exists()


def test_a_second_server_on_the_same_port_is_refused(server: LocalServer, tmp_path: Path) -> None:
    second = run(
        "serve", "--data-dir", str(tmp_path / "other"), "--port-base", str(server.port_base)
    )

    assert second.returncode == 1
    assert f"127.0.0.1:{server.port_base} (connect.port) is taken" in second.stderr


def test_the_doctor_finds_a_running_server_in_good_health(server: LocalServer) -> None:
    examined = run("doctor", "--data-dir", str(server.data_dir))

    assert examined.returncode == 0, examined.stdout
    assert "subscribed, sent, received, acked" in examined.stdout
    assert "fail" not in examined.stdout


def test_a_store_can_be_checked_and_backed_up_beside_the_server(
    server: LocalServer, tmp_path: Path
) -> None:
    directory = str(server.data_dir)
    checked = run("store", "check", "--data-dir", directory)
    saved = run("store", "backup", str(tmp_path / "backup"), "--data-dir", directory)
    refused = run("store", "restore", str(tmp_path / "backup"), "--data-dir", directory)

    assert (checked.returncode, saved.returncode) == (0, 0), checked.stderr + saved.stderr
    assert "no problems" in checked.stdout
    assert refused.returncode == 1
    assert "is in use" in refused.stderr


def test_port_zero_takes_free_ports_and_tells_them(tmp_path: Path) -> None:
    data = tmp_path / "data"
    zero = {f"WAYSTATION_{name}__PORT": "0" for name in ("CONNECT", "ENDPOINT", "CONSOLE")}
    with subprocess.Popen(
        [*COMMAND, "serve", *PUSH_ROLES, "--data-dir", str(data), "--workers", "1"],
        env={**os.environ, **zero, "WAYSTATION_CONNECT__RELAY_PORT": "0"},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        said = [line.strip() for line in iter(process.stdout.readline, "waystation is ready\n")]
        serving = read_server_info(DataDir(data))
        assert serving is not None
        for port in serving.ports.values():
            socket.create_connection(("127.0.0.1", port), 5).close()
        process.send_signal(signal.SIGTERM)

        assert process.wait(WAIT_S) == 0
        assert len(set(serving.ports.values())) == 4
        assert any(str(serving.ports["connect.port"]) in line for line in said)
        assert read_server_info(DataDir(data)) is None


def test_kill_nine_of_everything_and_a_start_at_once(tmp_path: Path) -> None:
    server = LocalServer(tmp_path / "data", options=("--workers", "2"))
    try:
        server.start()
        os.kill(
            server.pid, signal.SIGKILL
        )  # the supervisor alone: its workers follow by themselves
        server._child.wait(WAIT_S)  # pyright: ignore[reportOptionalMemberAccess]
        took_s = server.start()

        assert took_s < WAIT_S
        assert server.stop() == 0
    finally:
        server.close()


def test_roles_can_be_started_alone(tmp_path: Path) -> None:
    with LocalServer(tmp_path / "data", roles=("endpoint",), options=("--workers", "1")) as server:
        serving = told(server)

        assert serving.roles == ("endpoint",)
        assert list(serving.ports) == ["endpoint.port"]


def test_the_control_port_of_the_queue_server_can_be_switched_on(tmp_path: Path) -> None:
    env = {"WAYSTATION_QUEUE__CONTROL_PORT": "0"}
    with LocalServer(tmp_path / "data", roles=("queue",), env=env) as server:
        port = told(server).ports["queue.control_port"]
        with socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
            assert sock.makefile().readline().strip() == GREETING


def test_the_container_starts_with_the_environment_that_it_has(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "deploy/container/Containerfile").read_text()
    env = dict(re.findall(r"(WAYSTATION_(?:\w*HOST))=([\w.:]+)", text))
    assert env.keys() == {"WAYSTATION_HOST", "WAYSTATION_PRESENCE__HOST"}
    exposed = set(re.findall(r"^EXPOSE (.*)$", text, re.MULTILINE)[0].split())

    with LocalServer(
        tmp_path / "data", env=env | PUBLIC_NAMES, options=("--workers", "1")
    ) as server:
        serving = told(server)
        assert set(serving.roles) == {"connect", "endpoint", "queue", "presence", "console"}
        outside = [row.setting for row in serving.listening if "//0.0.0.0:" in row.url]
        usual = load_settings()
        numbers = {str(number_of(usual, port)) for port in PORTS if port.setting in outside}
        assert numbers == exposed


@pytest.mark.parametrize("command", ["serve", "doctor"])
def test_a_public_bind_without_public_names_is_refused(tmp_path: Path, command: str) -> None:
    """Its endpoints and queue addresses would lead every client to the client's own machine."""
    refused = run(command, "--data-dir", str(tmp_path / "data"), WAYSTATION_HOST="0.0.0.0")
    complaints = refused.stderr.splitlines()

    assert refused.returncode == 78
    assert [line.split()[1] for line in complaints[:2]] == ["endpoint.url", "queue.hosts"]
    assert not (tmp_path / "data").exists()


async def test_ops_ports_stay_on_loopback_unless_they_are_told_an_address(tmp_path: Path) -> None:
    """A port that listens on 127.0.0.1 alone refuses connections to 127.0.0.2."""
    env = {"WAYSTATION_HOST": "0.0.0.0", **PUBLIC_NAMES}
    with LocalServer(
        tmp_path / "data", env=env, roles=(*PUSH_ROLES, "queue"), options=("--workers", "1")
    ) as server:
        ports = told(server).ports
        relay, _ = await get(f"http://127.0.0.2:{ports['connect.relay_port']}/metrics")
        with socket.socket() as sock:
            ops = sock.connect_ex(("127.0.0.2", ports["queue.ops_port"]))

    assert (ops, relay) == (errno.ECONNREFUSED, 401), "/metrics on a public port needs the token"


async def test_on_a_public_address_numbers_need_the_token_of_the_data_directory(
    tmp_path: Path,
) -> None:
    env = {"WAYSTATION_HOST": "0.0.0.0", "WAYSTATION_OPS__HOST": "0.0.0.0", **PUBLIC_NAMES}
    with LocalServer(
        tmp_path / "data", env=env, roles=(*PUSH_ROLES, "queue"), options=("--workers", "1")
    ) as server:
        ports = told(server).ports
        token = (server.data_dir / "keys" / "metrics_token").read_text().strip()
        async with HttpClient() as http:
            answers = {
                (setting, bool(headers)): (
                    await http.request(
                        "GET", f"http://127.0.0.1:{ports[setting]}/metrics", headers=headers
                    )
                ).status
                for setting in ("connect.relay_port", "queue.ops_port")
                for headers in ({}, {"Authorization": f"Bearer {token}"})
            }
        assert any("the node API" in line and "0.0.0.0" in line for line in server.lines)

    assert answers == {
        ("connect.relay_port", False): 401,
        ("connect.relay_port", True): 200,
        ("queue.ops_port", False): 401,
        ("queue.ops_port", True): 200,
    }


def test_parties_without_locks_are_refused_on_a_public_address(tmp_path: Path) -> None:
    refused = run(
        *("serve", "presence", "--host", "0.0.0.0", "--data-dir", str(tmp_path)),
        WAYSTATION_PRESENCE__PORT="0",
        WAYSTATION_PRESENCE__PEER_PORT="0",
        WAYSTATION_PRESENCE__OPS_PORT="0",
    )

    assert refused.returncode == 78
    complaints = refused.stderr.splitlines()
    assert [line.split()[:2] for line in complaints] == [
        ["waystation:", "presence"],
        ["waystation:", "presence.auth.mode"],
    ]
    assert "presence.host = 127.0.0.1" in complaints[0]


def test_a_key_that_is_no_key_ends_the_start_with_its_sentence(tmp_path: Path) -> None:
    server = LocalServer(tmp_path / "data", env={"WAYSTATION_PUSH__CRYPTO_KEYS": "short"})
    with pytest.raises(ServerDidNotStartError, match="ended with code 78"):
        server.start()

    assert any("crypto key 1" in line for line in server.lines)


def name_shown_on(port: int) -> str:
    """The common name of the certificate that a client is shown there now."""
    pem = ssl.get_server_certificate(("127.0.0.1", port), timeout=10)
    certificate = x509.load_pem_x509_certificate(pem.encode())
    return str(certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value)


async def test_with_tls_every_public_port_is_secure_and_sighup_reads_it_again(
    tmp_path: Path,
) -> None:
    cert, key = self_signed(tmp_path, "first")
    env = {"WAYSTATION_TLS__CERT": str(cert), "WAYSTATION_TLS__KEY": str(key)}
    with LocalServer(tmp_path / "data", env=env, options=("--workers", "2")) as server:
        serving = told(server)
        trust = ssl.create_default_context(cafile=str(cert))
        vapid = VapidKey.generate()
        async with (
            UserAgent(serving.connect_url, tls=trust) as agent,
            AppServer(vapid, http=HttpClient(tls=trust)) as app_server,
        ):
            await agent.connected(WAIT_S)
            subscription = await agent.subscribe(vapid.public_text)
            await app_server.send(
                subscription.endpoint, subscription.public_keys, b"sealed twice", ttl_s=60
            )
            received = await agent.receive()

            assert serving.connect_url.startswith("wss://")
            assert subscription.endpoint.startswith(f"https://127.0.0.1:{server.port_base + 2}/")
            assert received.payload == b"sealed twice"

            public = [server.port_base, server.port_base + 2, server.port_base + 3]
            assert {name_shown_on(port) for port in public} == {"first"}
            self_signed(tmp_path, "second")
            os.kill(server.pid, signal.SIGHUP)
            shown: set[str] = set()
            for _ in range(200):  # several workers, each in its own time
                shown = {name_shown_on(port) for port in public for _ in range(4)}
                if shown == {"second"}:
                    break
            assert shown == {"second"}

            cert.write_text("not a certificate")
            os.kill(server.pid, signal.SIGHUP)
            await asyncio.sleep(0.5)
            assert {name_shown_on(port) for port in public} == {"second"}
            await app_server.send(subscription.endpoint, ttl_s=60)  # and nobody was cut off
            assert (await agent.receive()).payload is None


def test_the_doctor_walks_through_tls_and_names_a_certificate_that_nobody_trusts(
    tmp_path: Path,
) -> None:
    cert, key = self_signed(tmp_path, "doctor")
    env = {"WAYSTATION_TLS__CERT": str(cert), "WAYSTATION_TLS__KEY": str(key)}
    with LocalServer(tmp_path / "data", env=env, roles=PUSH_ROLES) as server:
        # The default ports of the other roles may be taken on this machine.
        env["WAYSTATION_PORT_BASE"] = str(server.port_base)
        trusted = run("doctor", "--data-dir", str(server.data_dir), SSL_CERT_FILE=str(cert), **env)
        strange = run("doctor", "--data-dir", str(server.data_dir), **env)

    assert trusted.returncode == 0, trusted.stdout
    assert "subscribed, sent, received, acked" in trusted.stdout
    assert strange.returncode == 1
    told = [line for line in strange.stdout.splitlines() if line.startswith("fail")]
    assert [line.split()[1] for line in told] == ["endpoint", "self-test"]
    assert all("CERTIFICATE_VERIFY_FAILED" in line for line in told)


def has_ipv6() -> bool:
    """A container may have it taken away; then the test below is one of IPv4."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


async def test_the_any_address_serves_every_port_by_ipv6_and_ipv4(tmp_path: Path) -> None:
    ipv6 = has_ipv6()
    base = free_ports(15)
    with LocalServer(
        tmp_path / "data",
        roles=PUSH_ROLES,
        port_base=base,
        env={
            "WAYSTATION_HOST": "::" if ipv6 else "0.0.0.0",
            "WAYSTATION_ENDPOINT__URL": f"http://{'[::1]' if ipv6 else '127.0.0.1'}:{base + 2}",
        },
        options=("--workers", "2"),
    ) as server:
        serving = told(server)
        vapid = VapidKey.generate()
        async with UserAgent(serving.connect_url) as agent, AppServer(vapid) as app_server:
            await agent.connected(WAIT_S)
            subscription = await agent.subscribe(vapid.public_text)
            for _ in range(4):  # at either worker
                await app_server.send(
                    subscription.endpoint, subscription.public_keys, b"by any address", ttl_s=60
                )
                assert (await agent.receive()).payload == b"by any address"
        hosts = ["127.0.0.1", "[::1]"] if ipv6 else ["127.0.0.1"]
        answers = {
            (setting, host): (await get(f"http://{host}:{port}/__lbheartbeat__"))[0]
            for setting, port in serving.ports.items()
            for host in hosts
        }

        assert subscription.endpoint.startswith("http://[::1]:" if ipv6 else "http://127.0.0.1:")
        assert len(answers) == len(hosts) * len(serving.ports) > len(hosts) * 3
        assert set(answers.values()) == {200}


async def test_journals_of_workers_that_no_longer_exist_are_handed_back(tmp_path: Path) -> None:
    """Fewer workers than before: what the last one held un-acked still arrives."""
    vapid = VapidKey.generate()
    server = LocalServer(tmp_path / "data", roles=PUSH_ROLES, options=("--workers", "2"))
    try:
        server.start()
        states: list[AgentState] = []
        async with AppServer(vapid) as app_server:
            agents = [UserAgent(f"{server.ws_url}/", auto_ack=False) for _ in range(8)]
            for agent in agents:  # enough of them that both workers hold some
                agent.start()
                await agent.connected(WAIT_S)
                subscription = await agent.subscribe(vapid.public_text)
                await app_server.send(
                    subscription.endpoint, subscription.public_keys, b"un-acked", ttl_s=600
                )
                await agent.receive()
                states.append(AgentState(agent.uaid, agent.subscriptions))
            server.kill()
            for agent in agents:
                await agent.close()
        fewer = LocalServer(
            tmp_path / "data",
            roles=PUSH_ROLES,
            port_base=server.port_base,
            options=("--workers", "1"),
        )
        with fewer:
            for state in states:
                async with UserAgent(f"{fewer.ws_url}/", state=state) as agent:
                    received = await asyncio.wait_for(agent.receive(), WAIT_S)

                    assert received.payload == b"un-acked"
    finally:
        server.close()
