"""Who may connect to the console, and for how long without a word."""

import asyncio
from typing import Any

import pytest
import uvicorn

from tests.unit.waiting import until
from waystation.app import console_worker
from waystation.app.addresses import listen

GET = b"GET / HTTP/1.1\r\nHost: console\r\nConnection: close\r\n\r\n"


async def page(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})


async def said_on(port: int, words: bytes) -> bytes:
    """All that is answered until the server hangs up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(words)
    try:
        return await asyncio.wait_for(reader.read(), 60)
    finally:
        writer.close()


async def test_silent_connections_have_a_limit_and_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console_worker, "CONNECTIONS_MAX", 2)
    monkeypatch.setattr(console_worker, "FIRST_REQUEST_S", 600.0)
    config = uvicorn.Config(
        page, http=console_worker.Connection, lifespan="off", log_config=None, access_log=False
    )
    server = console_worker.Server(config)
    sock = listen("127.0.0.1", 0, "console.port")
    port = sock.getsockname()[1]
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    try:
        await until(lambda: server.started)
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        await until(lambda: len(server.server_state.connections) == 2)
        refused = await said_on(port, b"")
        for _, writer in silent:
            writer.close()
        await until(lambda: not server.server_state.connections)
        monkeypatch.setattr(console_worker, "FIRST_REQUEST_S", 0.05)
        ended = await said_on(port, b"")
        monkeypatch.setattr(console_worker, "FIRST_REQUEST_S", 600.0)
        answered = await said_on(port, GET)
    finally:
        server.should_exit = True
        await serving

    assert refused.startswith(b"HTTP/1.1 503")
    assert b"Retry-After" in refused
    assert ended == b""
    assert answered.startswith(b"HTTP/1.1 204")
