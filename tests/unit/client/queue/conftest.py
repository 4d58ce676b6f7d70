"""A scripted server and a client of it."""

from collections.abc import AsyncIterator

import pytest

from tests.unit.client.queue.peer import ANY_TLS, PATIENT, SERVER, Server
from waystation.client.queue.client import QueueClient


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    yield server
    await server.close()


@pytest.fixture
async def client(server: Server) -> AsyncIterator[QueueClient]:
    async with QueueClient(SERVER, settings=PATIENT, tls=ANY_TLS, dial=server.dial) as client:
        yield client
