"""Streams of an edge: client sessions that reach this server over a link.

Rule 1: a stream is a client like any other: its commands are looked up, checked and executed by
        the same driver. The edge has passed on what its proofs are checked with (queues §6.3).
Rule 2: reading cannot be paused for one stream, because others share its link. A stream above its
        limit gets `BUSY`, which does not happen while the edge keeps its own limits. Commands that
        arrive on a stream in one loop turn are one batch: their proofs are checked together.
Rule 3: where a connection would be closed without an answer, `SCLOSE` asks the edge to do so.
"""

import asyncio
from collections.abc import Collection
from typing import Final

from waystation.base.address_limit import UNKNOWN
from waystation.queue.errors import Code
from waystation.queue.model import DhPrivateKey, SessionId, Slot
from waystation.queue.server.client import Client
from waystation.queue.server.driver import Driver
from waystation.queue.server.ownership import Elsewhere
from waystation.queue.server.refused_ids import BARS_MAX, RefusedIds
from waystation.queue.server.session import Session
from waystation.queue.wire.block import PlainBlocks
from waystation.queue.wire.commands import New
from waystation.queue.wire.forwarding import is_forwardable
from waystation.queue.wire.handshake import Agreement
from waystation.queue.wire.link import Body, ServerTransmission
from waystation.queue.wire.link_messages import Busy, Sclose, Sopen
from waystation.queue.wire.responses import Response, encode_response
from waystation.queue.wire.transmission import (
    Dialect,
    Received,
    Refusal,
    Transmission,
    decode_transmission,
    encode_answer,
)

INBOX_MAX: Final = 2048  # waiting commands of one client; above an edge's limit
_PAUSED_BYTES: Final = 1 << 40


class StreamPort:
    """Sends the messages of a stream: over a link, or to a test."""

    is_congested = False  # the edge does not read fast enough: no deliveries

    def put(self, stream: int, body: Body) -> None:
        raise AssertionError("a subclass must override `put`")


class StreamSession(Session):
    """A `Session` without blocks: answers are sent at once."""

    __slots__ = ("_port", "_stream", "forwarded", "is_paused", "refused_ids")

    def __init__(self, port: StreamPort, stream: int, opened: Sopen) -> None:
        self._port = port
        self._stream = stream
        self.forwarded = opened.forwarded
        self._handshake = None
        self._third = None
        self._agreement = Agreement(
            Dialect(opened.version, SessionId(opened.session_id)),
            PlainBlocks(),
            None,
            opened.session_key,
        )
        self._said = None
        self.is_paused = False  # by the edge: its client reads slowly
        self.refused_ids = RefusedIds()

    @property
    def said_bytes(self) -> int:
        """0: nothing waits on a stream itself."""
        return _PAUSED_BYTES if self.is_paused or self._port.is_congested else 0

    def say(self, corr_id: bytes, entity_id: bytes, response: Response) -> None:
        if isinstance(response, Elsewhere):
            self._port.put(self._stream, response.word)
            return
        dialect = self.agreement.dialect
        encoded = encode_response(response, dialect.version)
        self._port.put(
            self._stream, ServerTransmission(encode_answer(corr_id, entity_id, encoded, dialect))
        )

    @property
    def session_id(self) -> SessionId:
        return self.agreement.dialect.session_id

    @property
    def session_key(self) -> DhPrivateKey | None:
        return self.agreement.session_key


class StreamLine:
    """A `Line` on a stream."""

    __slots__ = ("_stream", "_streams", "origin")

    def __init__(self, streams: "Streams", stream: int) -> None:
        self.origin = UNKNOWN  # the edge counts addresses
        self._streams = streams
        self._stream = stream

    def touch(self) -> None:
        self._streams.touched(self._stream)

    def pause(self) -> None:
        """Not possible for one stream (rule 2)."""

    def resume(self) -> None:
        pass

    def finish(self) -> None:
        self._streams.disconnect(self._stream)

    def abort(self) -> None:
        self._streams.disconnect(self._stream)


class Streams:
    """All clients of one link."""

    def __init__(
        self, port: StreamPort, driver: Driver, *, out_blocks_max: int, streams_max: int
    ) -> None:
        self._port = port
        self._driver = driver
        self._out_blocks_max = out_blocks_max
        self._streams_max = streams_max
        self._clients: dict[int, Client] = {}
        self._batches: dict[int, list[Received]] = {}  # of this loop turn
        self._handing_over = False
        self._loop = asyncio.get_running_loop()

    def __len__(self) -> int:
        return len(self._clients)

    def get(self, stream: int) -> tuple[Client, StreamSession] | None:
        client = self._clients.get(stream)
        if client is None:
            return None
        session = client.session
        assert isinstance(session, StreamSession)
        return client, session

    def open(self, stream: int, opened: Sopen, mono: float) -> None:
        """A stream that is open begins anew: the edge has dropped the old one."""
        self.close(stream)
        if len(self._clients) >= self._streams_max:
            self._port.put(stream, Sclose())
            return
        session = StreamSession(self._port, stream, opened)
        self._clients[stream] = Client(
            StreamLine(self, stream), session, out_blocks_max=self._out_blocks_max, mono=mono
        )

    def close(self, stream: int) -> None:
        client = self._clients.pop(stream, None)
        self._batches.pop(stream, None)
        if client is not None:
            self._driver.closed(client)

    def close_all(self) -> None:
        for stream in list(self._clients):
            self.close(stream)

    def disconnect(self, stream: int) -> None:
        if stream in self._clients:
            self._port.put(stream, Sclose())
            self.close(stream)

    def sent(self, stream: int, transmission: bytes) -> None:
        """A command of a client."""
        found = self.get(stream)
        if found is None:
            self._port.put(stream, Sclose())  # closed by us, or never opened
            return
        client, session = found
        received = decode_transmission(transmission, session.agreement.dialect)
        if isinstance(received, Refusal):
            pass
        elif isinstance(received.command, New) or (
            session.forwarded and not is_forwardable(received.command)
        ):
            received = Refusal(received.corr_id, received.entity_id, Code.CMD_PROHIBITED)
        else:
            received = session.refused_ids.tag(received)
        batch = self._batches.setdefault(stream, [])
        waiting = 0 if client.work is None else sum(map(len, client.work.inbox))
        if waiting + len(batch) >= INBOX_MAX:
            self._port.put(stream, Busy(received.corr_id))
            if isinstance(received, Transmission):
                session.refused_ids.bar(received, Slot(0))
        else:
            batch.append(received)
        if not self._handing_over:
            self._handing_over = True
            self._loop.call_soon(self._hand_over)

    def _hand_over(self) -> None:
        self._handing_over = False
        batches, self._batches = self._batches, {}
        for stream, batch in batches.items():
            found = self.get(stream)
            if found is None or not batch:
                continue
            client, session = found
            self._driver.take(client, batch)
            if len(session.refused_ids) > BARS_MAX:
                self.disconnect(stream)

    def begin_again(self, stream: int, entity_id: bytes) -> None:
        found = self.get(stream)
        if found is not None:
            found[1].refused_ids.again(entity_id)

    def lost(self, slots: Collection[int]) -> None:
        """Another server owns these slots now."""
        for client in self._clients.values():
            session = client.session
            if isinstance(session, StreamSession) and session.refused_ids:
                session.refused_ids.lost(slots)

    def pause(self, stream: int, *, paused: bool) -> None:
        """The client reads slowly, or fast enough again."""
        found = self.get(stream)
        if found is not None:
            client, session = found
            session.is_paused = paused
            if not paused:
                self._driver.has_room(client)

    def has_room(self) -> None:
        """The edge reads fast enough again."""
        for client in list(self._clients.values()):
            self._driver.has_room(client)

    def touched(self, stream: int) -> None:
        """Answers were sent at once; deferred deliveries are checked."""
        client = self._clients.get(stream)
        if client is not None and client.deferred:
            self._driver.has_room(client)
