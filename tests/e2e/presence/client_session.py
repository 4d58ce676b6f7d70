"""One session of the random clients: records sent and received messages for the oracle."""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable
from typing import Any

import grpc

from tests.e2e.presence.oracle import Member, SessionRecord, StreamMessage
from waystation.presence.wire import party_presence_pb2 as pb
from waystation.presence.wire.party_presence_pb2 import ClientMessage

METHOD = "/ClientMessagingEndpoint/beginStream"
ANSWER_S = 15.0
RESUME_ONLY = 1
ACKS_MAX = 500  # in one message; the broker takes 1,024, and they may be named twice


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class PartyProgress:
    """The newest message of each party, updated on arrival: a search in all records takes longer
    than a session may be silent."""

    def __init__(self) -> None:
        self.left: set[Member] = set()  # as the watchers know
        self._newest: dict[tuple[int, int], int] = {}  # party and epoch
        self._epochs: dict[int, int] = {}  # as the watchers know them
        self._own: dict[Member, set[int]] = {}
        self._heard: dict[tuple[Member, int], int] = {}  # and epoch

    def note(self, record: SessionRecord, message: ClientMessage) -> None:
        kind, seq, epoch = message.message_type, message.party_seq, message.party_epoch
        if epoch and record.watches:
            self._epochs[record.party] = epoch
        if kind not in {pb.JOIN, pb.LEAVE, pb.LIST}:
            return
        self._heard[record.member, epoch] = max(self._heard.get((record.member, epoch), 0), seq)
        if kind != pb.LIST:
            self._newest[record.party, epoch] = max(self._newest.get((record.party, epoch), 0), seq)
            member = (message.client_id, message.session_id)
            self._own.setdefault(member, set()).add(seq)
            if kind == pb.LEAVE and record.watches:
                self.left.add(member)

    def missed(self, record: SessionRecord) -> str:
        """Messages of others that the session still misses; empty if there are none."""
        epoch = self._epochs[record.party]
        heard = self._heard.get((record.member, epoch), 0)
        last = self._newest.get((record.party, epoch), 0)
        rest = set(range(heard + 1, last + 1)) - self._own.get(record.member, set())
        return f"has heard {heard} of {last}" if rest else ""


class ClientSession:
    """One session, with its current way to acknowledge."""

    def __init__(
        self,
        record: SessionRecord,
        channel: Callable[[], grpc.aio.Channel],
        ttl_ms: int,
        party_progress: PartyProgress,
    ) -> None:
        self.record = record
        self.wanted = False  # it should have a stream
        self.busy = asyncio.Lock()
        self.ack_mode = "at once"
        self.unacked: list[int] = []
        self.unacked_at = 0.0  # since when
        self.token = b""
        self.up = False
        self.said_at = 0.0
        self._channel = channel
        self._ttl_ms = ttl_ms
        self._hearsay = party_progress
        self._ids = 0
        self._stream = 0
        self._call: Any = None
        self._writing = asyncio.Lock()  # gRPC takes one message at a time
        self._reader: asyncio.Task[None] | None = None
        self._answers: dict[int, asyncio.Future[ClientMessage]] = {}

    # --- what it does ----------------------------------------------------------------------------

    async def join(self, *, resume: bool = False) -> None:
        """Opens a stream; afterwards it is up, gone, or neither without an answer."""
        self.wanted = True
        self._stream += 1
        stream = self._stream
        call = self._channel().stream_stream(METHOD)()
        record = self.record
        message = self._message(
            pb.JOIN,
            session_id=record.session,
            client_id=record.client,
            party_id=record.party,
            session_ttl_ms=self._ttl_ms,
            resume_token=self.token,
            flags=RESUME_ONLY if resume else 0,
        )
        answer = self._expect(message)
        old, self._call = self._reader, call
        self._reader = asyncio.create_task(self._read(call, stream))
        try:
            await self._say(message)
            said = await asyncio.wait_for(answer, ANSWER_S)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, ConnectionError, TimeoutError):
            record.cut.add(stream)
            return
        finally:
            if old is not None:
                await asyncio.gather(old, return_exceptions=True)
        if said.message_type == pb.ACK:
            self.token = said.resume_token
            self.up = not self._reader.done()  # the node may have died since it answered
        elif said.status_code == pb.SESSION_NOT_FOUND:
            record.gone = True
            self.wanted = False

    async def leave(self) -> None:
        """Sends LEAVE; if the answer is lost, the next attempt shows the result."""
        self.wanted = False
        message = self._message(pb.LEAVE)
        answer = self._expect(message)
        with contextlib.suppress(
            grpc.aio.AioRpcError, asyncio.InvalidStateError, ConnectionError, TimeoutError
        ):
            await self._say(message)
            if (await asyncio.wait_for(answer, ANSWER_S)).message_type == pb.ACK:
                self.record.gone = True
                self.up = False
                if self._reader is not None:  # until the broker has ended the call
                    await asyncio.wait({self._reader}, timeout=ANSWER_S)
                return
        self.record.cut.add(self._stream)
        self.wanted = True  # the result is unknown: join again

    async def cut(self, *, for_good: bool = False) -> None:
        """Cancels the stream without LEAVE; with `for_good` until the session has expired."""
        self.record.cut.add(self._stream)
        self.wanted = False
        self.up = False
        if for_good:
            self.record.silent_since_ms = now_ms()
        if self._call is not None:
            self._call.cancel()
        if self._reader is not None:
            await asyncio.gather(self._reader, return_exceptions=True)

    async def ask(self, kind: int) -> None:
        """PING or LIST."""
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError, ConnectionError):
            await self._say(self._message(kind))

    async def make_noise(self, chance: random.Random) -> None:
        """Bytes that are no message: the stream ends, the session stays."""
        self.record.cut.add(self._stream)
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            async with self._writing:
                await self._call.write(b"\xff" + chance.randbytes(20))

    async def take_over(self) -> None:
        """A second stream for a session that has one."""
        self.record.cut.add(self._stream)
        await self.join()

    async def ack_now(self, *, twice: bool = False) -> None:
        """Acknowledges waiting ids once each, as many as one message may contain."""
        ids, self.unacked = list(dict.fromkeys(self.unacked)), []
        for at in range(0, len(ids), ACKS_MAX):
            some = ids[at : at + ACKS_MAX] * (1 + twice)
            message = ClientMessage(message_type=pb.ACK, ack_message_ids=some)
            with contextlib.suppress(
                grpc.aio.AioRpcError, asyncio.InvalidStateError, ConnectionError
            ):
                await self._say(message)

    async def close(self) -> None:
        if self._call is not None:
            self._call.cancel()
        if self._reader is not None:
            await asyncio.gather(self._reader, return_exceptions=True)

    def situation(self) -> str:
        """The state of the session, for error messages."""
        record, reader = self.record, self._reader
        now = now_ms()
        at = (
            []
            if reader is None
            else [f"{f.f_code.co_name}:{f.f_lineno}" for f in reader.get_stack()]
        )
        return str(
            {
                "up": self.up,
                "wanted": self.wanted,
                "busy": self.busy.locked(),
                "writing": self._writing.locked(),
                "reader": "none" if reader is None else "done" if reader.done() else at,
                "stream": self._stream,
                "silent": record.silent_since_ms,
                "stalls": record.stalls,
                "watches": record.watches,
                "said": [
                    (w.stream, w.message.message_type, w.at_ms - now) for w in record.said[-3:]
                ],
                "heard": [
                    (w.stream, w.message.message_type, w.message.status_code, w.at_ms - now)
                    for w in record.heard[-3:]
                ],
            }
        )

    # --- inside ----------------------------------------------------------------------------------

    def _message(self, kind: int, **fields: Any) -> ClientMessage:
        self._ids += 1
        return ClientMessage(message_type=kind, message_id=self._ids, **fields)  # type: ignore[arg-type]

    def _expect(self, message: ClientMessage) -> asyncio.Future[ClientMessage]:
        future = asyncio.get_running_loop().create_future()
        self._answers[message.message_id] = future
        return future

    async def _say(self, message: ClientMessage) -> None:
        async with self._writing:
            if self._call is None:
                raise ConnectionError
            self.said_at = time.monotonic()
            self.record.said.append(StreamMessage(now_ms(), self._stream, message))
            await self._call.write(message.SerializeToString())

    async def _read(self, call: Any, stream: int) -> None:
        try:
            async for data in call:
                await self._hear(ClientMessage.FromString(data), stream)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, asyncio.CancelledError):
            self.record.cut.add(stream)
        finally:
            if stream == self._stream:
                self.up = False
                for future in self._answers.values():
                    if not future.done():
                        future.set_exception(ConnectionError("the stream has ended"))
                        future.exception()  # its caller may have given up
                self._answers.clear()

    async def _hear(self, message: ClientMessage, stream: int) -> None:
        self.record.heard.append(StreamMessage(now_ms(), stream, message))
        self._hearsay.note(self.record, message)
        if message.message_type in {pb.ACK, pb.ERROR}:
            for one in message.ack_message_ids:
                future = self._answers.pop(one, None)
                if future is not None and not future.done():
                    future.set_result(message)
            if message.status_code in {pb.CLIENT_TIMEOUT, pb.ACK_TIMEOUT}:
                self.record.gone = True
                self.record.cut.add(stream)
                self.wanted = False
            return
        if not self.unacked:
            self.unacked_at = time.monotonic()
        self.unacked.append(message.message_id)
        if self.ack_mode == "at once" and stream == self._stream:
            await self.ack_now()
