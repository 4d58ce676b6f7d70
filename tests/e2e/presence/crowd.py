"""Two hundred clients that join, leave, break off and come back at random, over real gRPC.

Everything random comes from one seed. What each session says and hears is kept for the oracle; the
crowd itself decides nothing about right or wrong.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc

from tests.e2e.presence.oracle import Life, Word, check_answers
from waystation.presence.wire import party_presence_pb2 as pb
from waystation.presence.wire.party_presence_pb2 import ClientMessage

METHOD = "/ClientMessagingEndpoint/beginStream"
ANSWER_S = 15.0
RESUME_ONLY = 1
ACKS_MAX = 500  # in one message; the broker takes 1,024, and they may be named twice
WATCHER_TTL_MS = 300_000  # it must not time out, however busy the machine is
OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 300),
)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Visitor:
    """One session, with the manners of its moment."""

    def __init__(self, life: Life, channel: Callable[[], grpc.aio.Channel], ttl_ms: int) -> None:
        self.life = life
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
        self._ids = 0
        self._stream = 0
        self._call: Any = None
        self._writing = asyncio.Lock()  # gRPC takes one message at a time
        self._reader: asyncio.Task[None] | None = None
        self._answers: dict[int, asyncio.Future[ClientMessage]] = {}

    # --- what it does ----------------------------------------------------------------------------

    async def join(self, *, resume: bool = False) -> None:
        """Opens a stream; afterwards it is up, gone, or neither if nobody answered."""
        self.wanted = True
        self._stream += 1
        stream = self._stream
        call = self._channel().stream_stream(METHOD)()
        life = self.life
        message = self._message(
            pb.JOIN,
            session_id=life.session,
            client_id=life.client,
            party_id=life.party,
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
            life.cut.add(stream)
            return
        finally:
            if old is not None:
                await asyncio.gather(old, return_exceptions=True)
        if said.message_type == pb.ACK:
            self.token = said.resume_token
            self.up = True
        elif said.status_code == pb.SESSION_NOT_FOUND:
            life.gone = True
            self.wanted = False

    async def leave(self) -> None:
        """Takes effect, or the next attempt finds out."""
        self.wanted = False
        message = self._message(pb.LEAVE)
        answer = self._expect(message)
        with contextlib.suppress(
            grpc.aio.AioRpcError, asyncio.InvalidStateError, ConnectionError, TimeoutError
        ):
            await self._say(message)
            if (await asyncio.wait_for(answer, ANSWER_S)).message_type == pb.ACK:
                self.life.gone = True
                self.up = False
                if self._reader is not None:  # until the broker has ended the call
                    await asyncio.wait({self._reader}, timeout=ANSWER_S)
                return
        self.life.cut.add(self._stream)
        self.wanted = True  # nobody knows: come back and see

    async def cut(self, *, for_good: bool = False) -> None:
        """Without a word; `for_good` says nothing more at all until it has expired."""
        self.life.cut.add(self._stream)
        self.wanted = False
        self.up = False
        if for_good:
            self.life.silent_since_ms = now_ms()
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
        self.life.cut.add(self._stream)
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            async with self._writing:
                await self._call.write(b"\xff" + chance.randbytes(20))

    async def take_over(self) -> None:
        """A second stream for a session that has one."""
        self.life.cut.add(self._stream)
        await self.join()

    async def ack_now(self, *, twice: bool = False) -> None:
        """Everything that waits, each once however often it came, as many as one may name."""
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
            self.life.said.append(Word(now_ms(), self._stream, message))
            await self._call.write(message.SerializeToString())

    async def _read(self, call: Any, stream: int) -> None:
        try:
            async for data in call:
                await self._hear(ClientMessage.FromString(data), stream)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, asyncio.CancelledError):
            self.life.cut.add(stream)
        finally:
            if stream == self._stream:
                self.up = False
                for future in self._answers.values():
                    if not future.done():
                        future.set_exception(ConnectionError("the stream has ended"))
                        future.exception()  # whoever asked may have given up
                self._answers.clear()

    async def _hear(self, message: ClientMessage, stream: int) -> None:
        self.life.heard.append(Word(now_ms(), stream, message))
        if message.message_type in {pb.ACK, pb.ERROR}:
            for one in message.ack_message_ids:
                future = self._answers.pop(one, None)
                if future is not None and not future.done():
                    future.set_result(message)
            if message.status_code in {pb.CLIENT_TIMEOUT, pb.ACK_TIMEOUT}:
                self.life.gone = True
                self.life.cut.add(stream)
                self.wanted = False
            return
        if not self.unacked:
            self.unacked_at = time.monotonic()
        self.unacked.append(message.message_id)
        if self.ack_mode == "at once" and stream == self._stream:
            await self.ack_now()


WEIGHTS = {
    "join": 25,
    "leave": 15,
    "cut": 15,
    "resume": 15,
    "ping": 10,
    "stall": 5,
    "batch": 5,
    "noise": 2,
    "takeover": 3,
    "silent": 3,
    "list": 2,
}


class Crowd:
    def __init__(
        self,
        addresses: str | Sequence[str],
        seed: int,
        *,
        ttl_ms: int,
        clients: int = 200,
        parties: int = 20,
        channels: int = 8,
    ) -> None:
        self.chance = random.Random(seed)
        self.visitors: list[Visitor] = []
        self.operations = 0
        self._ttl_ms = ttl_ms
        # Of one node, or of several that share a store: then every stream goes to any of them.
        self._addresses = [addresses] if isinstance(addresses, str) else list(addresses)
        self._count = channels
        self._channels: list[list[grpc.aio.Channel]] = []
        self._clients = clients
        # Few parties are large and many are small.
        weights = [1 / (rank + 1) for rank in range(parties)]
        self._party_of = self.chance.choices(range(1, parties + 1), weights, k=clients)
        self._parties = parties
        self._sessions = 0
        self._room = asyncio.Semaphore(24)
        self._running: set[asyncio.Task[None]] = set()
        self._keeper: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Crowd":
        self._channels = [
            [grpc.aio.insecure_channel(address, OPTIONS) for address in self._addresses]
            for _ in range(self._count)
        ]
        watchers = [
            self._visitor(party, 10_000 + party, WATCHER_TTL_MS)
            for party in range(1, self._parties + 1)
        ]
        for watcher in watchers:
            watcher.life.watches = True
            await watcher.join()
            assert watcher.up, "a watcher could not join"
        # From now to the end: whoever is to stay must not time out because nothing else is done.
        self._keeper = asyncio.create_task(self._keep_alive())
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await asyncio.gather(*(visitor.close() for visitor in self.visitors))
        for channels in self._channels:
            for channel in channels:
                await channel.close()

    def _visitor(self, party: int, client: int, ttl_ms: int | None = None) -> Visitor:
        self._sessions += 1
        life = Life(party=party, client=client, session=self._sessions << 20 | client)
        channels = self._channels[self._sessions % len(self._channels)]
        visitor = Visitor(life, lambda: self.chance.choice(channels), ttl_ms or self._ttl_ms)
        self.visitors.append(visitor)
        return visitor

    @property
    def lives(self) -> list[Life]:
        return [visitor.life for visitor in self.visitors]

    # --- the walk --------------------------------------------------------------------------------

    async def run(
        self,
        seconds: float,
        operations_max: int,
        *,
        meanwhile: "asyncio.Task[None] | None" = None,
    ) -> None:
        """Random operations until one of the two is used up, each session's one at a time; with
        `meanwhile` they are spread over its whole time, and go on until it has ended."""
        names, weights = list(WEIGHTS), list(WEIGHTS.values())
        began = time.monotonic()
        gap_s = 0.0 if meanwhile is None else seconds / operations_max
        while self._goes_on(began + seconds, operations_max, meanwhile):
            await asyncio.sleep(max(0.0, began + self.operations * gap_s - time.monotonic()))
            name = self.chance.choices(names, weights)[0]
            visitor = self._pick(name)
            if visitor is not None:
                await self._room.acquire()
                self._spawn(self._operate(name, visitor))
                self.operations += 1
        if meanwhile is not None:
            await meanwhile
        await asyncio.gather(*self._running)

    def _goes_on(
        self, deadline: float, operations_max: int, meanwhile: "asyncio.Task[None] | None"
    ) -> bool:
        if meanwhile is not None:
            return not meanwhile.done()
        return time.monotonic() < deadline and self.operations < operations_max

    def _spawn(self, coro: Any) -> None:
        task = asyncio.create_task(coro)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def _pick(self, name: str) -> Visitor | None:
        if name == "join":
            client = self.chance.randrange(self._clients)
            mine = [v for v in self.visitors if v.life.client == client + 1 and not v.life.gone]
            if len(mine) >= 3:
                return None
            return self._visitor(self._party_of[client], client + 1)
        away = name == "resume"
        able = [
            visitor
            for visitor in self.visitors
            if not visitor.life.watches
            and not visitor.busy.locked()
            and not visitor.life.gone
            and visitor.life.silent_since_ms is None
            and not visitor.life.stalls
            and (not visitor.up if away else visitor.up)
        ]
        return self.chance.choice(able) if able else None

    async def _operate(self, name: str, visitor: Visitor) -> None:
        try:
            async with visitor.busy:
                if name in {"join", "resume"}:
                    await visitor.join(resume=name == "resume")
                elif not visitor.up:
                    return
                elif name == "leave":
                    await visitor.leave()
                elif name == "cut":
                    await visitor.cut()
                elif name == "silent":
                    await visitor.cut(for_good=True)
                elif name == "ping":
                    await visitor.ask(pb.PING)
                elif name == "list":
                    await visitor.ask(pb.LIST)
                elif name == "noise":
                    await visitor.make_noise(self.chance)
                elif name == "takeover":
                    await visitor.take_over()
                elif name == "stall":
                    visitor.ack_mode = "never"
                    visitor.life.stalls = True
                else:
                    visitor.ack_mode = self.chance.choice(("late", "at once"))
                    await visitor.ack_now(twice=self.chance.random() < 0.5)
        finally:
            self._room.release()

    async def _keep_alive(self) -> None:
        """Pings at a third of the TTL, late acks at last, and streams that broke come back."""
        while True:
            await asyncio.sleep(0.1)
            now = time.monotonic()
            for visitor in self.visitors:
                if visitor.busy.locked() or visitor.life.gone:
                    continue
                quiet = now - visitor.said_at > self._ttl_ms / 3000
                owes = visitor.unacked and now - visitor.unacked_at > self._ttl_ms / 4000
                if visitor.up and (quiet or (owes and visitor.ack_mode == "late")):
                    self._spawn(self._tend(visitor))
                elif visitor.wanted and not visitor.up:
                    self._spawn(self._bring_back(visitor))

    async def _tend(self, visitor: Visitor) -> None:
        async with visitor.busy:
            if visitor.up:
                await visitor.ask(pb.PING)
                if visitor.ack_mode == "late":
                    await visitor.ack_now()

    async def _bring_back(self, visitor: Visitor) -> None:
        async with visitor.busy:
            if visitor.wanted and not visitor.up and not visitor.life.gone:
                joined = bool(visitor.token)
                await visitor.join(resume=joined)

    # --- rest ------------------------------------------------------------------------------------

    async def settle(self, patience_s: float) -> None:
        """Everybody is in or gone, and has heard everything."""
        try:
            await self._settle(patience_s)
        except TimeoutError:
            behind = [f"{name} {how}" for name, how in self._behind().items()]
            raise TimeoutError(
                "\n".join(["still waiting for", *self._restless(), *behind])
            ) from None

    def _restless(self) -> Iterator[str]:
        for visitor in self.visitors:
            life = visitor.life
            if not (visitor.up or life.gone):
                state = {
                    "wanted": visitor.wanted,
                    "busy": visitor.busy.locked(),
                    "silent": life.silent_since_ms,
                    "stalls": life.stalls,
                    "watches": life.watches,
                    "said": [(w.stream, w.message.message_type) for w in life.said[-3:]],
                    "heard": [
                        (w.stream, w.message.message_type, w.message.status_code)
                        for w in life.heard[-3:]
                    ],
                }
                yield f"{life.name}: {state}"

    async def _settle(self, patience_s: float) -> None:
        async with asyncio.timeout(patience_s):
            for visitor in self.visitors:
                if visitor.life.silent_since_ms is None and not visitor.life.gone:
                    visitor.wanted = True
                    if visitor.ack_mode == "late":
                        visitor.ack_mode = "at once"
            await self._until(self._all_decided)
            for visitor in self.visitors:
                if visitor.life.stalls and not visitor.life.gone:
                    async with visitor.busy:
                        if visitor.up:
                            await visitor.leave()
            await self._until(self._all_decided)
            await self._until(lambda: not self._behind())
        with contextlib.suppress(TimeoutError):  # what is missing then is the oracle's to say
            async with asyncio.timeout(ANSWER_S):
                await self._until(lambda: not any(any(check_answers(one)) for one in self.lives))

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():  # noqa: ASYNC110 there is nobody to wake us
            await asyncio.sleep(0.05)

    def _all_decided(self) -> bool:
        left = self._left()
        for visitor in self.visitors:
            life = visitor.life
            if life.silent_since_ms is not None and life.member in left:
                life.gone = True
        return all(visitor.up or visitor.life.gone for visitor in self.visitors)

    def _left(self) -> set[tuple[int, int]]:
        return {
            (word.message.client_id, word.message.session_id)
            for visitor in self.visitors
            if visitor.life.watches
            for word in visitor.life.heard
            if word.message.message_type == pb.LEAVE
        }

    def _behind(self) -> dict[str, str]:
        """Who still waits for a message of its party, its own aside, and for which."""
        newest: dict[tuple[int, int], int] = {}  # party and epoch
        epochs: dict[int, int] = {}  # as the watchers know them
        own: dict[tuple[int, int], set[int]] = {}
        for visitor in self.visitors:
            for word in visitor.life.heard:
                message = word.message
                if message.message_type in {pb.JOIN, pb.LEAVE}:
                    party = (visitor.life.party, message.party_epoch)
                    newest[party] = max(newest.get(party, 0), message.party_seq)
                    member = (message.client_id, message.session_id)
                    own.setdefault(member, set()).add(message.party_seq)
                if message.party_epoch and visitor.life.watches:
                    epochs[visitor.life.party] = message.party_epoch
        behind: dict[str, str] = {}
        for visitor in self.visitors:
            life = visitor.life
            if life.gone:
                continue
            epoch = epochs[life.party]
            heard = max(
                (
                    word.message.party_seq
                    for word in life.heard
                    if word.message.message_type in {pb.JOIN, pb.LEAVE, pb.LIST}
                    and word.message.party_epoch == epoch
                ),
                default=0,
            )
            last = newest.get((life.party, epoch), 0)
            rest = set(range(heard + 1, last + 1)) - own.get(life.member, set())
            if rest:
                behind[life.name] = f"has heard {heard} of {last}"
        return behind

    async def go_home(self) -> None:
        """Everybody leaves, and knows it."""
        for visitor in self.visitors:
            async with visitor.busy:
                if visitor.up and not visitor.life.gone:
                    await visitor.leave()
        here = [visitor.life.name for visitor in self.visitors if not visitor.life.gone]
        assert not here, here
