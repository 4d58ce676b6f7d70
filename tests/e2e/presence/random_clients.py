"""Two hundred clients that join, leave, disconnect and resume at random, over real gRPC.

Everything random comes from one seed. Sent and received messages of each session are recorded for
the oracle, which alone judges them.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc

from tests.e2e.presence.client_session import ANSWER_S, ClientSession, PartyProgress
from tests.e2e.presence.oracle import SessionRecord, check_answers
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


class RandomClients:
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
        self.client_sessions: list[ClientSession] = []
        self._here: list[ClientSession] = []  # not gone, or not a moment ago
        self._hearsay = PartyProgress()
        self._unsure: list[SessionRecord] = []  # with unanswered requests
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

    async def __aenter__(self) -> "RandomClients":
        self._channels = [
            [grpc.aio.insecure_channel(address, OPTIONS) for address in self._addresses]
            for _ in range(self._count)
        ]
        watchers = [
            self._client_session(party, 10_000 + party, WATCHER_TTL_MS)
            for party in range(1, self._parties + 1)
        ]
        for watcher in watchers:
            watcher.record.watches = True
            await watcher.join()
            assert watcher.up, "a watcher could not join"
        # To the end: sessions that stay must not time out between operations.
        self._keeper = asyncio.create_task(self._keep_alive())
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await asyncio.gather(*(client_session.close() for client_session in self.client_sessions))
        for channels in self._channels:
            for channel in channels:
                await channel.close()

    def _client_session(self, party: int, client: int, ttl_ms: int | None = None) -> ClientSession:
        self._sessions += 1
        record = SessionRecord(party=party, client=client, session=self._sessions << 20 | client)
        channels = self._channels[self._sessions % len(self._channels)]
        client_session = ClientSession(
            record, lambda: self.chance.choice(channels), ttl_ms or self._ttl_ms, self._hearsay
        )
        self.client_sessions.append(client_session)
        self._here.append(client_session)
        return client_session

    @property
    def records(self) -> list[SessionRecord]:
        return [client_session.record for client_session in self.client_sessions]

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
            client_session = self._pick(name)
            if client_session is not None:
                await self._room.acquire()
                self._spawn(self._operate(name, client_session))
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

    def _pick(self, name: str) -> ClientSession | None:
        if name == "join":
            client = self.chance.randrange(self._clients)
            mine = [v for v in self._here if v.record.client == client + 1 and not v.record.gone]
            if len(mine) >= 3:
                return None
            return self._client_session(self._party_of[client], client + 1)
        away = name == "resume"
        able = [
            client_session
            for client_session in self._here
            if not client_session.record.watches
            and not client_session.busy.locked()
            and not client_session.record.gone
            and client_session.record.silent_since_ms is None
            and not client_session.record.stalls
            and (not client_session.up if away else client_session.up)
        ]
        return self.chance.choice(able) if able else None

    async def _operate(self, name: str, client_session: ClientSession) -> None:
        try:
            async with client_session.busy:
                if name in {"join", "resume"}:
                    await client_session.join(resume=name == "resume")
                elif not client_session.up:
                    return
                elif name == "leave":
                    await client_session.leave()
                elif name == "cut":
                    await client_session.cut()
                elif name == "silent":
                    await client_session.cut(for_good=True)
                elif name == "ping":
                    await client_session.ask(pb.PING)
                elif name == "list":
                    await client_session.ask(pb.LIST)
                elif name == "noise":
                    await client_session.make_noise(self.chance)
                elif name == "takeover":
                    await client_session.take_over()
                elif name == "stall":
                    client_session.ack_mode = "never"
                    client_session.record.stalls = True
                else:
                    client_session.ack_mode = self.chance.choice(("late", "at once"))
                    await client_session.ack_now(twice=self.chance.random() < 0.5)
        finally:
            self._room.release()

    async def _keep_alive(self) -> None:
        """Pings at a third of the TTL, late acks at last, and streams that broke come back."""
        while True:
            await asyncio.sleep(0.1)
            now = time.monotonic()
            self._here = [
                client_session for client_session in self._here if not client_session.record.gone
            ]
            for client_session in self._here:
                if client_session.busy.locked():
                    continue
                quiet = now - client_session.said_at > self._ttl_ms / 3000
                owes = (
                    client_session.unacked and now - client_session.unacked_at > self._ttl_ms / 4000
                )
                if client_session.up and (quiet or (owes and client_session.ack_mode == "late")):
                    self._spawn(self._tend(client_session))
                elif client_session.wanted and not client_session.up:
                    self._spawn(self._bring_back(client_session))

    async def _tend(self, client_session: ClientSession) -> None:
        async with client_session.busy:
            if client_session.up:
                await client_session.ask(pb.PING)
                if client_session.ack_mode == "late":
                    await client_session.ack_now()

    async def _bring_back(self, client_session: ClientSession) -> None:
        async with client_session.busy:
            if client_session.wanted and not client_session.up and not client_session.record.gone:
                joined = bool(client_session.token)
                await client_session.join(resume=joined)

    # --- rest ------------------------------------------------------------------------------------

    async def settle(self, patience_s: float) -> None:
        """Waits until every session is in or gone, and has received everything."""
        try:
            await self._settle(patience_s)
        except TimeoutError:
            lines = ["still waiting for", *self._restless(), *self._behind()]
            raise TimeoutError("\n".join(lines)) from None

    def _restless(self) -> Iterator[str]:
        for client_session in self.client_sessions:
            if not (client_session.up or client_session.record.gone):
                yield f"{client_session.record.name} {client_session.situation()}"

    async def _settle(self, patience_s: float) -> None:
        async with asyncio.timeout(patience_s):
            for client_session in self.client_sessions:
                if client_session.record.silent_since_ms is None and not client_session.record.gone:
                    client_session.wanted = True
                    if client_session.ack_mode == "late":
                        client_session.ack_mode = "at once"
            await self._until(self._all_decided)
            for client_session in self.client_sessions:
                if client_session.record.stalls and not client_session.record.gone:
                    async with client_session.busy:
                        if client_session.up:
                            await client_session.leave()
            await self._until(self._all_decided)
            await self._until(lambda: not any(self._behind()))
        self._unsure = self.records
        with contextlib.suppress(TimeoutError):  # the oracle reports what is missing
            async with asyncio.timeout(ANSWER_S):
                await self._until(self._all_answered)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():  # noqa: ASYNC110 there is nobody to wake us
            await asyncio.sleep(0.05)

    def _all_answered(self) -> bool:
        """Sessions that left are checked until it was so once; the others may send requests."""
        self._unsure = [
            record for record in self._unsure if not record.gone or any(check_answers(record))
        ]
        return not any(any(check_answers(record)) for record in self._unsure)

    def _all_decided(self) -> bool:
        for client_session in self.client_sessions:
            record = client_session.record
            if record.silent_since_ms is not None and record.member in self._hearsay.left:
                record.gone = True
        return all(
            client_session.up or client_session.record.gone
            for client_session in self.client_sessions
        )

    def _behind(self) -> Iterator[str]:
        """Sessions that miss a message of their party."""
        for client_session in self.client_sessions:
            if not client_session.record.gone and (
                missed := self._hearsay.missed(client_session.record)
            ):
                yield f"{client_session.record.name} {missed}: {client_session.situation()}"

    async def leave_all(self) -> None:
        """All sessions leave and get the answer."""
        await asyncio.gather(*(self._go(client_session) for client_session in self._here))
        here = [
            client_session.record.name
            for client_session in self.client_sessions
            if not client_session.record.gone
        ]
        assert not here, here

    async def _go(self, client_session: ClientSession) -> None:
        async with client_session.busy:
            if client_session.up and not client_session.record.gone:
                await client_session.leave()
