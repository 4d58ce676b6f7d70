"""A push server of a hundred lines, in memory and in a thread: what the load tools are tried on.

It can be told to lose every n-th notification: a tool that never reports a loss proves nothing.
"""

import asyncio
import json
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from waystation.client.encryption import b64url


class SmallServer:
    def __init__(self, lose_every: int = 0) -> None:
        self.ws_url = self.endpoint_url = ""
        self._lose_every = lose_every
        self._posts = 0
        self._agents: dict[str, ServerConnection] = {}
        self._waiting: dict[str, list[dict[str, Any]]] = {}

    async def start(self) -> tuple[Server, asyncio.Server]:
        ws = await serve(self._agent, "127.0.0.1", 0, compression=None)
        self.ws_url = f"ws://127.0.0.1:{next(iter(ws.sockets)).getsockname()[1]}"
        http = await asyncio.start_server(self._app_server, "127.0.0.1", 0)
        self.endpoint_url = f"http://127.0.0.1:{http.sockets[0].getsockname()[1]}"
        return ws, http

    async def _agent(self, socket: ServerConnection) -> None:
        uaid = ""
        try:
            async for frame in socket:
                message = json.loads(frame)
                kind = message["messageType"]
                if kind == "hello":
                    uaid = message.get("uaid") or uuid.uuid4().hex
                    self._agents[uaid] = socket
                    await socket.send(json.dumps({**message, "uaid": uaid, "status": 200}))
                    for notification in self._waiting.pop(uaid, []):
                        await socket.send(json.dumps(notification))
                elif kind == "register":
                    path = f"/wpush/v2/{uaid}.{message['channelID']}"
                    reply = {"status": 200, "pushEndpoint": self.endpoint_url + path}
                    await socket.send(json.dumps({**message, **reply}))
        except ConnectionClosed:
            pass
        finally:
            if self._agents.get(uaid) is socket:
                del self._agents[uaid]

    async def _app_server(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                body = await reader.readexactly(
                    int(head.lower().partition("content-length: ")[2].split()[0])
                )
                uaid, channel_id = head.split()[1].rpartition("/")[2].split(".")
                await self._deliver(uaid, channel_id, body)
                writer.write(b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n")
        except (EOFError, OSError):
            writer.close()

    async def _deliver(self, uaid: str, channel_id: str, body: bytes) -> None:
        self._posts += 1
        if self._lose_every and self._posts % self._lose_every == 0:
            return
        notification = {
            "messageType": "notification",
            "channelID": channel_id,
            "version": str(self._posts),
            "data": b64url(body),
        }
        socket = self._agents.get(uaid)
        if socket is None:
            self._waiting.setdefault(uaid, []).append(notification)
        else:
            await socket.send(json.dumps(notification))


@contextmanager
def small_server(lose_every: int = 0) -> Iterator[SmallServer]:
    server = SmallServer(lose_every)
    loop = asyncio.new_event_loop()
    ws, http = loop.run_until_complete(server.start())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def stop() -> None:
        http.close()
        ws.close()
        await ws.wait_closed()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
