"""Another floor, where nginx with its nchan module is installed: a frame delivered by it.

One nginx worker, as many WebSocket subscribers as in `broadcast`, messages of about its size.
"""

import contextlib
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

from waystation.client.http import HttpClient

from .fleet import PATIENCE_S
from .load import Phases, measured
from .measurement import Measurement
from .senders import until
from .target import Scale, Target, per_operation_us
from .wire import AgentConnection, host_and_port

_CONF = """
load_module {module};
daemon off; worker_processes 1; pid {dir}/pid; error_log stderr error;
events {{ worker_connections 16000; }}
http {{
  access_log off; client_body_temp_path {dir}/b; proxy_temp_path {dir}/p;
  fastcgi_temp_path {dir}/f; uwsgi_temp_path {dir}/u; scgi_temp_path {dir}/s;
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location = / {{ nchan_subscriber websocket; nchan_channel_id news; }}
    location = /publish {{ nchan_publisher; nchan_channel_id news; nchan_message_buffer_length 0; }}
  }}
}}
"""


def nchan_module() -> Path | None:
    """Beside the nginx that is found first, be it in /usr or elsewhere."""
    nginx = shutil.which("nginx")
    if nginx is None:
        return None
    home = Path(nginx).parents[1]
    places = (home / where / "nginx/modules/ngx_nchan_module.so" for where in ("lib", "share"))
    return next((path for path in places if path.exists()), None)


@contextlib.contextmanager
def nchan_server(module: Path) -> Iterator[Target]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="waystation-nchan-") as where:
        conf = Path(where) / "nginx.conf"
        conf.write_text(_CONF.format(module=module, dir=where, port=port))
        nginx = shutil.which("nginx")
        assert nginx is not None
        child = subprocess.Popen([nginx, "-c", str(conf), "-p", where])
        try:
            for _ in range(100):
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                    break
                time.sleep(0.05)
            yield Target(f"ws://127.0.0.1:{port}", f"http://127.0.0.1:{port}", (child.pid,))
        finally:
            child.terminate()
            child.wait(10)


def run(target: Target, scale: Scale) -> Measurement:
    job = {
        "ws_url": target.ws_url,
        "endpoint_url": target.endpoint_url,
        "agents": scale.broadcast_agents,
        "broadcasts": max(20, scale.broadcasts),
    }
    (result,), before, after = measured(__name__, [job], target.look)
    return Measurement(
        scenario="nchan",
        operation="frame",
        operations=result["frames"],
        seconds=result["seconds"],
        cpu_us=per_operation_us(before, after, result["frames"]),
        notes=f"nginx, {job['broadcasts']} messages to {scale.broadcast_agents} subscribers",
    )


async def load(job: dict[str, Any], phases: Phases) -> dict[str, Any]:
    import asyncio

    frames = 0

    def on_text(_: AgentConnection, __: bytes) -> None:
        nonlocal frames
        frames += 1

    host, port = host_and_port(job["ws_url"])
    loop = asyncio.get_running_loop()
    connections: list[AgentConnection] = []
    for _ in range(job["agents"]):
        connection = AgentConnection(f"{host}:{port}", on_text)
        connection.opened = loop.create_future()
        await loop.create_connection(lambda c=connection: c, host, port)
        await asyncio.wait_for(connection.opened, PATIENCE_S)
        connections.append(connection)
    body = b'{"messageType":"broadcast","broadcasts":{"benchmark/news":"172000.123456.1"}}'
    async with HttpClient() as http:
        await phases.ready()
        began = perf_counter()
        for number in range(1, job["broadcasts"] + 1):
            await http.request("POST", job["endpoint_url"] + "/publish", body=body)
            await until(lambda n=number: frames >= n * job["agents"], 30)
        seconds = perf_counter() - began
        phases.done()
    for connection in connections:
        connection.transport.abort()
    return {"frames": frames, "seconds": seconds}
