"""A Megaphone server with one broadcast: GET tells its version, PUT sets it.

`python -m benchmarks.megaphone [PORT]` prints its URL and serves, so that any server of this
protocol can be told to poll it (`megaphone_api_url`).
"""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from typing import cast

import httptools

from .load import ROOT

BROADCAST = "benchmark/news"
FIRST_VERSION = "v0"


class Megaphone(asyncio.Protocol):
    version = FIRST_VERSION  # one for all connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._parser = httptools.HttpRequestParser(self)
        self._body = b""

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        if self._parser.get_method() == b"PUT":
            Megaphone.version = self._body.decode()
        self._body = b""
        answer = b'{"code":200,"broadcasts":{"%b":"%b"}}' % (
            BROADCAST.encode(),
            Megaphone.version.encode(),
        )
        self._transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
            % (len(answer), answer)
        )


async def _serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Megaphone, "127.0.0.1", port)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


@contextlib.contextmanager
def megaphone() -> Iterator[str]:
    """Its URL."""
    child = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.megaphone"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    try:
        yield child.stdout.readline().strip()
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(int(sys.argv[1]) if len(sys.argv) > 1 else 0))
