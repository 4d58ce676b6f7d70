"""Deduplication ids."""

import random

from tests.unit.presence.broker_harness import BrokerHarness
from waystation.base.timer_wheel import TimerWheel
from waystation.net.http2.port import GrpcStatus
from waystation.presence.model import (
    EPOCH_2020_MS,
    MessageType,
    Status,
    next_tick,
    party_message_id,
    tick_of,
)
from waystation.presence.wire import party_presence_pb2 as pb
from waystation.presence.wire.error_forms import ENDINGS


def test_party_ids_increase_whatever_the_clock_does() -> None:
    """P-050: a million of them."""
    rng = random.Random(50)
    now_ms, tick, last = 1_800_000_000_000, 0, 0
    for at in range(1_000_000):
        if at % 97 == 0:
            now_ms += rng.choice([-5000, 0, 1, 1, 2, 10])
        tick = next_tick(tick, now_ms)
        message_id = party_message_id(tick)
        if message_id <= last:
            raise AssertionError("an id went back")
        last = message_id

    assert last >> 62 == 0b10
    assert tick_of(last) == tick
    assert (tick >> 21) + EPOCH_2020_MS >= now_ms


def test_local_ids_are_distinct_over_three_attachments(harness: BrokerHarness) -> None:
    """P-050"""
    a = harness.member(1)
    for _ in range(3):
        for _ in range(5):
            a.ping()
        a.take()
        a.cut()
        a.resume()
        a.take()

    ids = [one.message_id for one in a.seen]
    assert len(set(ids)) == len(ids) > 20
    assert all(one >> 62 == 0b11 for one in ids)
    assert {one >> 32 & (1 << 30) - 1 for one in ids} == {1, 2, 3, 4}


def test_enum_numbers_match_the_proto_definition() -> None:
    assert dict(pb.StatusCode.items()) == {one.name: one.value for one in Status}
    assert dict(pb.ClientMessageType.items()) == {one.name: one.value for one in MessageType}


def test_every_code_that_ends_a_stream_has_a_form() -> None:
    for status in Status:
        if status >= 64 or status is Status.INTERNAL_ERROR:
            assert ENDINGS[status] is not GrpcStatus.OK


def test_the_wheel_is_neither_early_nor_late() -> None:
    """P-060: its cost is in benchmarks/."""
    rng = random.Random(60)
    wheel: TimerWheel[int] = TimerWheel(0.1, 2048, 0.0)
    deadlines = [rng.uniform(0, 300) for _ in range(100_000)]
    handles = [wheel.add(deadline, at) for at, deadline in enumerate(deadlines)]
    cancelled = set(range(0, 100_000, 7))
    for at in cancelled:
        assert wheel.cancel(handles[at])
    seen: set[int] = set()
    for tick in range(1, 3003):
        now = tick * 0.1
        for at in wheel.advance(now):
            assert deadlines[at] <= now + 1e-6
            assert now - deadlines[at] <= 0.1 + 1e-6
            seen.add(at)

    assert seen == set(range(100_000)) - cancelled
    assert len(wheel) == 0
