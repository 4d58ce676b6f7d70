"""The floor F: what a POST costs when nobody does anything with it.

`bare` is a protocol of forty lines on uvloop and httptools; `ours` is `waystation.net.http1.server`
with a handler that looks at two headers and answers, so the difference between the two is the price
of order, limits and time-outs. `python -m benchmarks.floor bare|ours` prints its port and serves.
"""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from typing import cast

import httptools

from .load import ROOT
from .target import Target

_ANSWER = (
    b"HTTP/1.1 201 Created\r\nLocation: http://127.0.0.1/m/%b\r\nTTL: 60\r\n"
    b"Content-Length: 0\r\n\r\n" % (b"x" * 180)
)


class Bare(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._parser = httptools.HttpRequestParser(self)
        self._headers: dict[bytes, bytes] = {}
        self._body = b""

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._headers = {}
        self._body = b""

    def on_url(self, url: bytes) -> None:
        self._url = url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        if self._headers.get(b"ttl") and self._headers.get(b"authorization") and self._body:
            self._transport.write(_ANSWER)
        else:
            self._transport.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")


async def _serve_bare() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Bare, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def _serve_ours() -> None:
    from waystation.base.clock import SystemClock
    from waystation.net.http1.server import HttpServer, Request, Response
    from waystation.net.loop import NetLoop

    created = Response.of(
        201, headers=b"Location: http://127.0.0.1/m/%b\r\nTTL: 60\r\n" % (b"x" * 180)
    )
    refused = Response.of(400)

    def answer(request: Request) -> Response:
        headers = request.headers
        good = headers.get(b"ttl") and headers.get(b"authorization") and request.body
        return created if good else refused

    server = HttpServer(
        answer,
        net=NetLoop(clock=SystemClock()),
        clock=SystemClock(),
        body_limit=lambda _: 8192,
        on_failure=lambda _request, _error: Response.of(500),
    )
    print(server.listen("127.0.0.1", 0), flush=True)
    await asyncio.Event().wait()


@contextlib.contextmanager
def floor_server(kind: str) -> Iterator[Target]:
    child = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.floor", kind],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout is not None
        port = int(child.stdout.readline())
        yield Target("", f"http://127.0.0.1:{port}", (child.pid,))
    finally:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


def main() -> None:
    import uvloop

    serve = {"bare": _serve_bare, "ours": _serve_ours}[sys.argv[1]]
    with (
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        contextlib.suppress(KeyboardInterrupt),
    ):
        runner.run(serve())


if __name__ == "__main__":
    main()
