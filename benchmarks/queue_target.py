"""The queue server that is measured, and clients of it that cost little of their own."""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from waystation.client.local_server import LocalServer
from waystation.client.queue.address import ServerAddress
from waystation.client.queue.connection import Connection, ConnectionSettings, connect
from waystation.client.queue.tls import client_context
from waystation.client.queue.transmission import Reply

from .process_tree import Usage, usage
from .target import OWN_COMMAND, serving


class QueueTarget(msgspec.Struct, frozen=True):
    address: str  # smp://…
    pids: tuple[int, ...] = ()
    count: Callable[[Iterable[int]], Usage] = usage

    def look(self) -> Usage | None:
        return self.count(self.pids) if self.pids else None


class QueueScale(msgspec.Struct, frozen=True, kw_only=True):
    """How much of everything."""

    seconds: float = 5.0
    connections: int = 16  # each with one block under way
    pairs: int = 32  # of a sender and a recipient, each with one message under way
    idle: int = 1000
    queues: int = 5000
    refusals: int = 200  # of each kind


QUEUE_QUICK = QueueScale(seconds=1.5, idle=300, queues=1000, refusals=100)
QUEUE_SMOKE = QueueScale(seconds=0.2, connections=2, pairs=2, idle=5, queues=20, refusals=3)


@contextlib.contextmanager
def own_queue_server(command: Sequence[str] = OWN_COMMAND) -> Iterator[QueueTarget]:
    """`waystation serve queue` in a temporary directory, on the embedded store."""
    with serving("queue", command=command) as server:
        yield queue_target_of(server)


def queue_target_of(server: LocalServer) -> QueueTarget:
    return QueueTarget(queue_address_of(server), (server.pid,))


def queue_address_of(server: LocalServer) -> str:
    told = msgspec.json.decode((server.data_dir / "run" / "serve.json").read_bytes())
    return told["queue_address"]


def nobody(_reply: Reply) -> None:
    """For connections whose events do not matter."""


async def connections(
    address: str, count: int, *, inner_encryption: bool = True, at_once: int = 16
) -> list[Connection]:
    server = ServerAddress.parse(address)
    tls = client_context(any_suite=True)  # the server chooses the suite of the protocol
    settings = ConnectionSettings(
        inner_encryption=inner_encryption, connect_timeout_s=60, request_timeout_s=60
    )
    room = asyncio.Semaphore(at_once)

    async def one() -> Connection:
        async with room:
            return await connect(server, nobody, tls, settings)

    return list(await asyncio.gather(*(one() for _ in range(count))))


async def close_all(opened: list[Connection]) -> None:
    await asyncio.gather(*(connection.close() for connection in opened))
