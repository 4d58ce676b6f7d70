"""A scripted server: blocks without TLS over a socket pair.

Who the server is and how TLS is set up is shown elsewhere, with real servers; here a test decides
what is answered, when, and when the line breaks.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

from waystation.client.queue.address import ServerAddress
from waystation.client.queue.block import BLOCK_BYTES, BlockReader, BlockWriter
from waystation.client.queue.bodies import SEALED_BYTES
from waystation.client.queue.boxes import block_chains, box_key, seal_padded, shared_secret
from waystation.client.queue.connection import Connection, ConnectionSettings, NotConnectedError
from waystation.client.queue.encoding import Reader, i64, maybe, short
from waystation.client.queue.exchange import Exchange
from waystation.client.queue.hello import IdentityError, Session, block_ends
from waystation.client.queue.keys import PrivateKey, PublicKey
from waystation.client.queue.queue_secrets import RecipientQueue
from waystation.client.queue.transmission import Reply, decode_batch, encode_batch

SERVER = ServerAddress(bytes(range(32)), ("server.test",))
SESSION_ID = b"\x5a" * 32
SERVER_KEY = PrivateKey("x25519", b"\x11" * 32)
PATIENT = ConnectionSettings(backoff_base_s=0.001, backoff_max_s=0.01)
NOW = datetime(2026, 11, 15, tzinfo=UTC)
ANY_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # handed around and never used


class Heard(NamedTuple):
    auth: bytes
    corr_id: bytes
    entity_id: bytes
    command: bytes


class Peer:
    """The server's end of one connection."""

    def __init__(
        self,
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        secret: bytes,
        version: int,
    ) -> None:
        self._reader, self._writer = streams
        to_client, from_client = block_chains(SESSION_ID, secret)
        encrypted = version >= 11
        self._in = BlockReader(from_client if encrypted else None)
        self._out = BlockWriter(to_client if encrypted else None)
        self._version = version
        self._waiting: list[Heard] = []
        self.blocks = 0

    async def hear(self) -> Heard:
        """The next command."""
        while not self._waiting:
            block = await self._reader.readexactly(BLOCK_BYTES)
            self.blocks += 1
            self._waiting += map(self._parse, decode_batch(self._in.read(block)))
        return self._waiting.pop(0)

    def _parse(self, data: bytes) -> Heard:
        reader = Reader(data)
        auth = reader.short()
        if auth and self._version >= 16:
            assert not reader.maybe()
        return Heard(auth, reader.short(), reader.short(), reader.tail())

    def say(self, *answers: tuple[bytes, bytes, bytes]) -> None:
        """Correlation id, entity id and words of each, all in one block."""
        parts = [b"\0" + short(corr) + short(entity) + words for corr, entity, words in answers]
        self._writer.write(self._out.write(encode_batch(parts)))

    def answer(self, heard: Heard, words: bytes) -> None:
        self.say((heard.corr_id, heard.entity_id, words))

    def raw(self, data: bytes) -> None:
        self._writer.write(data)

    def hang_up(self) -> None:
        self._writer.close()


class Server:
    """Each dial of the client makes a `Peer`; `refuse` makes the next so many fail."""

    def __init__(self, version: int = 18) -> None:
        self._version = version
        self._peers: asyncio.Queue[Peer] = asyncio.Queue()
        self._writers: list[asyncio.StreamWriter] = []
        self.refuse = 0
        self.dials = 0
        self._another = False

    def become_another(self) -> None:
        """From now on its identity is not the one of the address."""
        self._another = True

    async def dial(
        self,
        _server: ServerAddress,
        on_event: Callable[[Reply], None],
        _tls: ssl.SSLContext,
        settings: ConnectionSettings,
        /,
    ) -> Connection:
        self.dials += 1
        if self._another:
            raise IdentityError("the server's fingerprint is not the one in the address")
        if self.refuse:
            self.refuse -= 1
            raise NotConnectedError("nobody there")
        ours, theirs = socket.socketpair()
        streams = await asyncio.open_connection(sock=ours)
        others = await asyncio.open_connection(sock=theirs)
        self._writers += [streams[1], others[1]]
        private = PrivateKey.generate("x25519")
        session = Session(self._version, SESSION_ID, SERVER_KEY.public.raw)
        exchange = Exchange(session, *block_ends(session, private))
        secret = shared_secret(private.public.raw, SERVER_KEY.seed)
        self._peers.put_nowait(Peer(others, secret, self._version))
        return Connection(streams, exchange, on_event, request_timeout_s=settings.request_timeout_s)

    async def peer(self) -> Peer:
        """The server's end of the next connection."""
        return await self._peers.get()

    async def close(self) -> None:
        for writer in self._writers:
            writer.close()
        await asyncio.gather(
            *(writer.wait_closed() for writer in self._writers), return_exceptions=True
        )


def a_queue(number: int = 1) -> RecipientQueue:
    return RecipientQueue(
        server=SERVER,
        recipient_id=bytes([number]) * 24,
        sender_id=bytes([number + 100]) * 24,
        key=PrivateKey("ed25519", bytes([number]) * 32),
        box_key=bytes([number]) * 32,
        inbox_key=PrivateKey("x25519", bytes([number]) * 32),
        mode="M",
    )


def message(queue: RecipientQueue, message_id: bytes, text: bytes, sent_at_s: int = 7) -> bytes:
    """The words of MSG."""
    sealed = seal_padded(
        queue.box_key, message_id, i64(sent_at_s) + b"F " + text, SEALED_BYTES - 16
    )
    return b"MSG " + short(message_id) + sealed


def marker(queue: RecipientQueue, message_id: bytes, sent_at_s: int = 7) -> bytes:
    sealed = seal_padded(queue.box_key, message_id, b"QUOTA " + i64(sent_at_s), SEALED_BYTES - 16)
    return b"MSG " + short(message_id) + sealed


def ids(
    recipient_id: bytes, sender_id: bytes, *, mode: bytes = b"M", link_id: bytes = b""
) -> bytes:
    """The words of IDS, version 17 and later."""
    return (
        b"IDS "
        + short(recipient_id)
        + short(sender_id)
        + short(SERVER_KEY.public.der)
        + maybe(mode)
        + maybe(short(link_id) if link_id else None)
        + maybe(None)
        + maybe(None)
    )


def queue_box_key(dh_der: bytes) -> bytes:
    """What the server of `ids` shares with the owner of this key."""
    return box_key(PublicKey.from_der(dh_der).raw, SERVER_KEY.seed)
