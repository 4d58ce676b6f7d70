"""Large numbers: ten thousand who say nothing, and a hundred who say nonsense."""

import gc
import random
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.presence.broker_harness import PARTY, BrokerHarness, HarnessClient, kinds
from waystation.net.http2.port import GrpcStatus
from waystation.presence.model import MessageType
from waystation.presence.wire.party_presence_pb2 import ClientMessage

StageWith = Callable[..., BrokerHarness]
ENGINE_BYTES_MAX = 10 * 1024  # of the 12 KiB of a session; the test's own end is in it, too


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_ten_thousand_idle_sessions_cost_memory_and_nothing_else(stage_with: StageWith) -> None:
    """P-093: the engine's half; the transport's is a bar of the benchmarks. A tick touches no
    session whose time has not come."""
    harness = stage_with(join_burst=100, node_sessions_max=20_000)
    warm = [harness.member(client, party=1, flags=8) for client in range(1, 21)]
    gc.collect()
    before = rss_bytes()
    for number in range(10_000):
        participant = harness.member(1000 + number, party=2 + number // 20, flags=8)
        participant.stream.raw.clear()
        participant.stream.at.clear()
        participant.seen.clear()
    gc.collect()
    each = (rss_bytes() - before) / 10_000
    for _ in range(100):  # timers of the LISTs, which were acknowledged, find nothing to do
        harness.clock.advance(0.1)
        harness.broker.periodic_work.tick()
    registry = harness.broker.registry
    insertions, timers = registry.insertions, len(registry.wheel)
    asked: list[float] = []
    look = harness.broker.session_end.timer_due
    harness.broker.session_end.timer_due = lambda session, now: (
        asked.append(now.mono) or look(session, now)
    )
    for _ in range(1000):  # 110 s in all: less than a TTL
        harness.clock.advance(0.1)
        assert not harness.broker.periodic_work.tick()

    assert len(registry.sessions) == 10_020
    assert each < ENGINE_BYTES_MAX, f"{each:.0f} bytes"
    assert asked == []
    assert (registry.insertions, len(registry.wheel)) == (insertions, timers)
    assert all(one.status is None for one in warm)


def mutated(rng: random.Random, valid: list[bytes]) -> bytes:
    data = bytearray(rng.choice(valid))
    for _ in range(rng.randint(1, 4)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)


@pytest.mark.parametrize(
    "messages", [10_000, pytest.param(100_000, marks=pytest.mark.soak)], ids=["some", "all"]
)
def test_mutated_messages_over_a_hundred_streams(stage_with: StageWith, messages: int) -> None:
    """P-033: nothing is unhandled, a party beside it notices nothing, and nothing is left."""
    harness = stage_with(
        join_burst=10_000, join_rate_per_min=1e9, rate_per_s=1e9, rate_burst=1_000_000
    )
    rng = random.Random(33)
    watcher, healthy = harness.member(1, auto=False), harness.member(2)
    watcher.ack_all(watcher.take())
    told = len(watcher.stream.raw)
    valid = [
        ClientMessage(
            message_id=9,
            message_type=kind,  # pyright: ignore[reportArgumentType] two enums of the same numbers
            ack_message_ids=[1, 2, 3],
        ).SerializeToString()
        for kind in (MessageType.PING, MessageType.LIST, MessageType.ACK, MessageType.JOIN)
    ]

    def fresh(client: int) -> HarnessClient:
        participant = harness.participant(client, party=PARTY + 1).join()
        participant.take()
        return participant

    streams = [fresh(client) for client in range(100, 200)]
    ends: set[str] = set()
    for number in range(messages):
        at = number % 100
        participant = streams[at]
        participant.say_bytes(mutated(rng, valid))
        if participant.status is not None:
            ends.add(participant.stream.detail)
            streams[at] = fresh(100 + at)
            harness.participants.remove(participant)
        elif number % 1000 < 100:
            participant.take()
            participant.stream.raw.clear()
            participant.stream.at.clear()
            participant._read = 0
    healthy.ping()

    assert not harness.failures
    # Some mutate into a LEAVE, which ends a call without a word.
    assert ends <= {"", "MALFORMED_MESSAGE", "PROTOCOL_VIOLATION"}
    assert kinds(healthy.take())[-1] == "ACK"
    assert len(watcher.stream.raw) == told
    assert {one.stream.status for one in (watcher, healthy)} == {None}
    for participant in streams:
        participant.cut()
    harness.pass_time(125, step=1.0)
    registry = harness.broker.registry
    assert not registry.sessions
    assert GrpcStatus.INTERNAL not in {one.status for one in streams}
    assert len(registry.wheel) == 0
