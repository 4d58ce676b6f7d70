"""Parties of twenty: pings, fan-out and churn, on bare gRPC and on ours.

Server CPU per delivered message is what counts. The load speaks HTTP/2 by hand from one process;
each client has a connection of its own, or all share four; and once there are five times as many.
"""

import asyncio
import gc
import time
from collections.abc import Callable, Iterator
from typing import Any

import uvloop

from benchmarks.measurement import Measurement, percentile
from benchmarks.presence_target import KINDS, PartyServer
from benchmarks.presence_wire import Call, Connection, connect
from benchmarks.target import Scale, per_operation_us
from benchmarks.wire import LoadError
from waystation.presence.wire import party_presence_pb2 as pb
from waystation.presence.wire.party_presence_pb2 import ClientMessage

PARTY = 20
SHARED = 4
MANY = 5  # times the usual number of clients
CROWD = "many streams"
SETTINGS = ("plain", "TLS", f"{SHARED} connections", CROWD)
QUIET_SHARE = 0.3  # of what a server could deliver, when it is asked how long one delivery takes
START_S = 60.0
TTL_MS = 600_000  # nobody times out, and pings are ours to send


class Guest:
    """One session of the load."""

    __slots__ = ("acks", "batch", "call", "client", "connection", "ids", "joined", "party", "take")

    def __init__(self, connection: Connection, party: "Party", client: int) -> None:
        self.connection = connection
        self.party = party
        self.client = client
        self.ids = 0
        self.batch = 1
        self.acks: list[int] = []
        self.joined = asyncio.get_running_loop().create_future()
        self.take: Callable[[Guest, ClientMessage], None] = lambda _guest, _message: None
        self.call: Call | None = None

    def join(self) -> None:
        self.call = self.connection.open(self._hear)
        self.say(
            message_type=pb.JOIN,
            session_id=self.party.server.next_session(),
            client_id=self.client,
            party_id=self.party.number,
            session_ttl_ms=TTL_MS,
        )

    def say(self, **fields: Any) -> int:
        assert self.call is not None
        self.ids += 1
        message = ClientMessage(message_id=self.ids, **fields)
        self.call.send(message.SerializeToString())
        return self.ids

    def _hear(self, call: Call, data: bytes) -> None:
        if call is not self.call:
            return
        if not data:
            if not self.joined.done():
                self.joined.set_exception(LoadError("a stream ended before it had joined"))
            return
        message = ClientMessage.FromString(data)
        if message.message_type == pb.ERROR:
            raise LoadError(f"the server said {message.status_code}")
        if message.message_type == pb.LIST and not self.joined.done():
            self.joined.set_result(None)
        if message.message_type != pb.ACK:
            self.acks.append(message.message_id)
            if len(self.acks) >= self.batch:
                ack = ClientMessage(message_type=pb.ACK, ack_message_ids=self.acks)
                call.send(ack.SerializeToString())
                self.acks.clear()
        self.take(self, message)


class Party:
    def __init__(self, server: "Load", number: int) -> None:
        self.server = server
        self.number = number
        self.guests: list[Guest] = []
        self.left = 0  # deliveries of this turn that are still to come
        self.turn = 0
        self.leaving = False


class Load:
    """Everybody who is connected to one server."""

    def __init__(self, server: PartyServer, guests: int, connections: int) -> None:
        self._server = server
        self._guests = guests
        self._count = connections
        self._sessions = time.time_ns()
        self._connections: list[Connection] = []
        self.parties: list[Party] = []
        self.delivered = 0
        self.running = True
        self.latencies_ms: list[float] = []

    def next_session(self) -> int:
        self._sessions += 1
        return self._sessions

    async def __aenter__(self) -> "Load":
        for _ in range(self._count):
            self._connections.append(await connect(self._server.port, self._server.tls))
        base = time.time_ns() // 1000 % 2**40 * PARTY
        for number in range(self._guests // PARTY):
            party = Party(self, base + number + 1)
            self.parties.append(party)
            for seat in range(PARTY):
                index = number * PARTY + seat
                guest = Guest(self._connections[index % self._count], party, index + 1)
                party.guests.append(guest)
                guest.join()
            async with asyncio.timeout(START_S):
                await asyncio.gather(*(guest.joined for guest in party.guests))
        await asyncio.sleep(0.3)  # announcements that are still on their way
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.running = False
        for connection in self._connections:
            connection.close()
        await asyncio.sleep(0.1)

    # --- workloads -------------------------------------------------------------------------------

    def ping_all(self) -> None:
        def take(guest: Guest, message: ClientMessage) -> None:
            if message.message_type == pb.ACK:
                self.delivered += len(message.ack_message_ids)
                if self.running:
                    guest.say(message_type=pb.PING)

        for party in self.parties:
            for guest in party.guests:
                guest.take = take
                guest.say(message_type=pb.PING)

    def fan_out(self, batch: int = 1) -> None:
        def take(guest: Guest, message: ClientMessage) -> None:
            if message.message_type == pb.SIGNAL:
                self.delivered += 1
                party = guest.party
                party.left -= 1
                if party.left == 0 and self.running:
                    begin(party)

        def begin(party: Party) -> None:
            party.left = PARTY - 1
            party.guests[0].say(message_type=pb.SIGNAL, payload=b"sixteen bytes...")

        for party in self.parties:
            for guest in party.guests:
                guest.take = take
                guest.batch = batch
            begin(party)

    def churn(self) -> None:
        """One after the other leaves and joins again; the rest of the party is told of both."""

        def take(guest: Guest, message: ClientMessage) -> None:
            party = guest.party
            mover = party.guests[party.turn % PARTY]
            if guest is mover:
                if message.message_type == pb.ACK and party.leaving:
                    party.leaving = False
                    guest.join()
                return
            if message.message_type in {pb.JOIN, pb.LEAVE}:
                self.delivered += 1
                party.left -= 1
                if party.left == 0 and self.running:
                    party.turn += 1
                    begin(party)

        def begin(party: Party) -> None:
            party.left = 2 * (PARTY - 1)
            party.leaving = True
            party.guests[party.turn % PARTY].say(message_type=pb.LEAVE)

        for party in self.parties:
            for guest in party.guests:
                guest.take = take
            begin(party)

    async def fan_out_at(self, per_s: float, seconds: float) -> None:
        """So many deliveries a second, evenly: what a delivery takes."""
        sent: dict[int, float] = {}

        def take(guest: Guest, message: ClientMessage) -> None:
            if message.message_type == pb.SIGNAL:
                self.delivered += 1
                began = sent.get(int.from_bytes(message.payload, "big"))
                if began is not None:
                    self.latencies_ms.append((time.perf_counter() - began) * 1000)

        for party in self.parties:
            for guest in party.guests:
                guest.take = take
        gap_s = (PARTY - 1) / per_s
        began = time.perf_counter()
        for number in range(max(10, int(seconds / gap_s))):
            due = began + number * gap_s
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            sent[number] = time.perf_counter()
            party = self.parties[number % len(self.parties)]
            party.guests[0].say(message_type=pb.SIGNAL, payload=number.to_bytes(16, "big"))
        await asyncio.sleep(0.5)


WORKLOADS: dict[str, Callable[[Load], None]] = {
    "ping": Load.ping_all,
    "fan-out": Load.fan_out,
    "churn": Load.churn,
}


def name_of(workload: str, setting: str, kind: str) -> str:
    return f"{workload}, {setting}: {kind}"


def run(server: PartyServer, setting: str, scale: Scale) -> Iterator[Measurement]:
    for workload, begin in WORKLOADS.items():
        yield measure(server, setting, workload, begin, scale)
    if server.kind == "ours" and setting == "plain":
        name = "fan-out, acks by 8"
        yield measure(server, setting, name, lambda load: load.fan_out(8), scale)


def measure(
    server: PartyServer, setting: str, workload: str, begin: Callable[[Load], None], scale: Scale
) -> Measurement:
    async def go() -> tuple[int, float, float | None]:
        count = scale.party_guests * (MANY if setting == CROWD else 1)
        connections = SHARED if setting.startswith(str(SHARED)) else count
        async with Load(server, count, connections) as load:
            begin(load)
            await asyncio.sleep(min(0.3, scale.seconds / 3))  # until it runs evenly
            before, began, delivered = server.look(), time.perf_counter(), load.delivered
            await asyncio.sleep(scale.seconds)
            after, seconds = server.look(), time.perf_counter() - began
            done = load.delivered - delivered
            return done, seconds, per_operation_us(before, after, done)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        done, seconds, cpu_us = runner.run(go())
    if not done:
        raise LoadError(f"{server.kind} delivered nothing: {workload}, {setting}")
    against = "fan-out" if workload.startswith("fan-out") else workload
    base = "ours" if workload not in WORKLOADS else KINDS[0]
    return Measurement(
        scenario=name_of(workload, setting, server.kind),
        operation="message delivered",
        operations=done,
        seconds=seconds,
        cpu_us=cpu_us,
        against="" if server.kind == base == "bare" else name_of(against, setting, base),
    )


def latency(server: PartyServer, scale: Scale) -> Measurement:
    """At a share of the rate that keeps the server's core busy: what that rate is, is found first,
    from the CPU of a delivery under full load."""
    full = measure(server, "plain", "fan-out", Load.fan_out, scale)
    per_s = QUIET_SHARE * (1e6 / full.cpu_us if full.cpu_us else full.rate)

    async def go() -> Load:
        async with Load(server, scale.party_guests, scale.party_guests) as load:
            gc.collect()
            gc.disable()  # a pause of the load would be taken for the server's
            try:
                await load.fan_out_at(per_s, scale.seconds)
            finally:
                gc.enable()
            return load

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        load = runner.run(go())
    return Measurement(
        scenario=f"fan-out at 30 %: {server.kind}",
        operation="message delivered",
        operations=load.delivered,
        seconds=scale.seconds,
        p50_ms=percentile(load.latencies_ms, 0.5),
        p99_ms=percentile(load.latencies_ms, 0.99),
        notes=f"{per_s:,.0f} deliveries a second",
    )


def idle(server: PartyServer, scale: Scale) -> Measurement:
    """Memory of the server for each session that says nothing."""

    async def go() -> tuple[int, float]:
        async with Load(server, 2 * PARTY, 2 * PARTY):
            pass
        await asyncio.sleep(1.0)
        before = server.look()
        async with Load(server, scale.party_idle, scale.party_idle):
            await asyncio.sleep(1.0)
            after = server.look()
        return before.anonymous_kib, after.anonymous_kib

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        before, after = runner.run(go())
    return Measurement(
        scenario=f"idle session: {server.kind}",
        operation="session",
        operations=scale.party_idle,
        seconds=1.0,
        kib=(after - before) / scale.party_idle,
    )
