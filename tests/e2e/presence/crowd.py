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

from tests.e2e.presence.oracle import Life, check_answers
from tests.e2e.presence.visitor import ANSWER_S, Hearsay, Visitor
from waystation.presence.wire import party_presence_pb2 as pb

WATCHER_TTL_MS = 300_000  # it must not time out, however busy the machine is
OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 300),
)
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
        self._here: list[Visitor] = []  # those of them who are not gone, or were not a moment ago
        self._hearsay = Hearsay()
        self._unsure: list[Life] = []  # whose questions may not be answered yet
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
        visitor = Visitor(
            life, lambda: self.chance.choice(channels), ttl_ms or self._ttl_ms, self._hearsay
        )
        self.visitors.append(visitor)
        self._here.append(visitor)
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
            mine = [v for v in self._here if v.life.client == client + 1 and not v.life.gone]
            if len(mine) >= 3:
                return None
            return self._visitor(self._party_of[client], client + 1)
        away = name == "resume"
        able = [
            visitor
            for visitor in self._here
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
            self._here = [visitor for visitor in self._here if not visitor.life.gone]
            for visitor in self._here:
                if visitor.busy.locked():
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
            lines = ["still waiting for", *self._restless(), *self._behind()]
            raise TimeoutError("\n".join(lines)) from None

    def _restless(self) -> Iterator[str]:
        for visitor in self.visitors:
            if not (visitor.up or visitor.life.gone):
                yield f"{visitor.life.name} {visitor.situation()}"

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
            await self._until(lambda: not any(self._behind()))
        self._unsure = self.lives
        with contextlib.suppress(TimeoutError):  # what is missing then is the oracle's to say
            async with asyncio.timeout(ANSWER_S):
                await self._until(self._all_answered)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():  # noqa: ASYNC110 there is nobody to wake us
            await asyncio.sleep(0.05)

    def _all_answered(self) -> bool:
        """Who is gone is asked until it was so once; who is here may ask something new."""
        self._unsure = [life for life in self._unsure if not life.gone or any(check_answers(life))]
        return not any(any(check_answers(life)) for life in self._unsure)

    def _all_decided(self) -> bool:
        for visitor in self.visitors:
            life = visitor.life
            if life.silent_since_ms is not None and life.member in self._hearsay.left:
                life.gone = True
        return all(visitor.up or visitor.life.gone for visitor in self.visitors)

    def _behind(self) -> Iterator[str]:
        """Who still waits for a message of its party."""
        for visitor in self.visitors:
            if not visitor.life.gone and (missed := self._hearsay.missed(visitor.life)):
                yield f"{visitor.life.name} {missed}: {visitor.situation()}"

    async def go_home(self) -> None:
        """Everybody leaves, and knows it."""
        await asyncio.gather(*(self._go(visitor) for visitor in self._here))
        here = [visitor.life.name for visitor in self.visitors if not visitor.life.gone]
        assert not here, here

    async def _go(self, visitor: Visitor) -> None:
        async with visitor.busy:
            if visitor.up and not visitor.life.gone:
                await visitor.leave()
