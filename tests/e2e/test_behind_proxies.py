"""The samples of deploy/ for nginx and Caddy, run by nginx and Caddy.

Only ports, host names and certificates are replaced: the samples are for public machines.
"""

import re
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.certificates import self_signed
from tests.e2e.platform import PORTS, Process, Serve
from tests.ports import free_ports
from tools.prepare_tests import proxy_program
from waystation.client.appserver import AppServer
from waystation.client.http import HttpClient
from waystation.client.push import UserAgent
from waystation.client.vapid import VapidKey

pytestmark = [pytest.mark.e2e, pytest.mark.proxies]

DEPLOY = Path(__file__).parents[2] / "deploy"
WAIT_S = 30.0


class Proxy(Process):
    """nginx or Caddy on two TLS ports: one for user agents, one for app servers."""

    def __init__(self, command: list[str], folder: Path, ports: tuple[int, int]) -> None:
        super().__init__(command, {"HOME": str(folder), "XDG_DATA_HOME": str(folder)})
        self._ports = ports

    def is_ready(self) -> bool:
        for port in self._ports:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
            except OSError:
                return False
        return True


def replaced(sample: str, changes: dict[str, str]) -> str:
    """A pattern that the sample lacks fails the test: it would run something else."""
    for pattern, replacement in changes.items():
        sample, count = re.subn(pattern, replacement, sample, flags=re.MULTILINE)
        assert count, pattern
    return sample


def nginx(folder: Path, backend: int, ports: tuple[int, int], cert: Path, key: Path) -> Proxy:
    sample = (DEPLOY / "nginx" / "waystation.conf").read_text()
    for port in ports:  # user agents come first in the sample
        assert "listen 443 ssl;" in sample
        sample = sample.replace("listen 443 ssl;", f"listen 127.0.0.1:{port} ssl;", 1)
    sample = replaced(
        sample,
        {
            r"^ *listen \[::\]:443 ssl;\n": "",
            r"/etc/letsencrypt/live/\S+/fullchain\.pem": str(cert),
            r"/etc/letsencrypt/live/\S+/privkey\.pem": str(key),
            r"127\.0\.0\.1:8080": f"127.0.0.1:{backend}",
            r"127\.0\.0\.1:8082": f"127.0.0.1:{backend + 2}",
        },
    )
    site = folder / "waystation.conf"
    site.write_text(sample)
    paths = "".join(
        f"{name}_temp_path {folder / name};\n"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    whole = folder / "nginx.conf"
    whole.write_text(
        f"daemon off;\nworker_processes 1;\npid {folder / 'pid'};\nerror_log stderr;\n"
        "events { worker_connections 256; }\n"
        f"http {{\n{paths}access_log off;\ninclude {site};\n}}\n"
    )
    command = [program("nginx"), "-c", str(whole), "-p", str(folder), "-e", "stderr"]
    return Proxy(command, folder, ports)


def caddy(folder: Path, backend: int, ports: tuple[int, int], cert: Path, key: Path) -> Proxy:
    sample = replaced(
        (DEPLOY / "caddy" / "Caddyfile").read_text(),
        {
            r"^push\.example\.org {": f"https://127.0.0.1:{ports[0]} {{\n\ttls {cert} {key}",
            r"^updates\.example\.org {": f"https://127.0.0.1:{ports[1]} {{\n\ttls {cert} {key}",
            r"127\.0\.0\.1:8080": f"127.0.0.1:{backend}",
            r"127\.0\.0\.1:8082": f"127.0.0.1:{backend + 2}",
        },
    )
    whole = folder / "Caddyfile"
    whole.write_text("{\n\tadmin off\n\tauto_https disable_redirects\n}\n" + sample)
    command = [program("caddy"), "run", "--config", str(whole), "--adapter", "caddyfile"]
    return Proxy(command, folder, ports)


def program(name: str) -> str:
    path = proxy_program(name)
    assert path is not None, f"`make test` brings {name}; SKIP=proxies leaves this test out"
    return str(path)


@pytest.mark.parametrize("proxy", [nginx, caddy])
async def test_a_notification_passes_the_sample_both_ways(
    proxy: Callable[..., Proxy], tmp_path: Path
) -> None:
    """A WebSocket through one name and POSTs through the other."""
    cert, key = self_signed(tmp_path / "tls")
    trust = ssl.create_default_context(cafile=str(cert))
    backend = free_ports(PORTS)
    ports = (free_ports(1), free_ports(1))
    connect_url = f"wss://127.0.0.1:{ports[0]}"
    endpoint_url = f"https://127.0.0.1:{ports[1]}"
    server = Serve(
        tmp_path / "data",
        port_base=backend,
        connect__url=connect_url,
        endpoint__url=endpoint_url,
    )
    vapid = VapidKey.generate()
    with server, proxy(tmp_path, backend, ports, cert, key):
        async with (
            UserAgent(connect_url, tls=trust) as agent,
            AppServer(
                vapid, http=HttpClient(tls=trust), subject="mailto:ops@example.org"
            ) as app_server,
        ):
            subscription = await agent.subscribe(vapid.public_text)
            assert subscription.endpoint.startswith(endpoint_url)

            receipt = await app_server.send(
                subscription.endpoint, subscription.public_keys, b"x" * 3_000, ttl_s=60
            )
            received = await agent.receive()

            assert received.payload == b"x" * 3_000
            assert receipt.location.startswith(endpoint_url)
