"""Copies between servers: frames in parts, and their senders."""

import asyncio
import ssl
from typing import Any, cast

import msgspec
import pytest

from waystation.base.tasks import Tasks
from waystation.queue.cluster.effects import SendAck
from waystation.queue.cluster.migration import Frame
from waystation.queue.cluster.peers import Peers, node_of
from waystation.queue.cluster.slot_map import NodeId, SlotMap
from waystation.queue.model import Slot
from waystation.queue.store import Row
from waystation.queue.wire.link_messages import CopyAck, CopyPart

ONE = NodeId(1)


class Heard:
    """A `CopyReceiver` that remembers."""

    def __init__(self) -> None:
        self.frames: list[tuple[int, int, int, Frame]] = []
        self.acks: list[tuple[int, int, bool]] = []
        self.lost: list[int] = []

    def frame_arrived(self, peer: NodeId, copy: int, slot: int, move: int, frame: Frame) -> None:
        self.frames.append((copy, slot, move, frame))

    def ack_arrived(self, peer: NodeId, copy: int, seq: int, broken: bool) -> None:
        self.acks.append((copy, seq, broken))

    def link_lost(self, peer: NodeId) -> None:
        self.lost.append(peer)


@pytest.fixture
async def peers() -> Peers:
    def failed(name: str, error: BaseException) -> None:
        raise AssertionError(name) from error

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    links = cast(Any, None)  # no link is made
    peers = Peers(links=links, context=context, slot_map=SlotMap, tasks=Tasks(failed))
    peers.receiver = Heard()
    return peers


@pytest.fixture
def heard(peers: Peers) -> Heard:
    assert isinstance(peers.receiver, Heard)
    return peers.receiver


def parts_of(frame: Frame, copy: int = 5, size: int = 100) -> list[CopyPart]:
    data = msgspec.msgpack.encode(frame)
    starts = range(0, len(data), size)
    return [
        CopyPart(copy, Slot(9), 3, start + size >= len(data), data[start : start + size])
        for start in starts
    ]


def test_a_frame_in_parts_is_put_together_also_when_two_copies_mix(
    peers: Peers, heard: Heard
) -> None:
    first = Frame(1, "rows", (Row(0, b"k" * 300, b"v" * 300),))
    second = Frame(1, "log", (Row(2, b"q", None),))
    one, two = parts_of(first, copy=5), parts_of(second, copy=6)
    assert len(one) > 3
    for part in (*one[:2], *two, *one[2:]):
        assert peers.arrived(ONE, part)

    assert heard.frames == [(6, 9, 3, second), (5, 9, 3, first)]


def test_what_is_no_frame_ends_the_link(peers: Peers, heard: Heard) -> None:
    assert not peers.arrived(ONE, CopyPart(5, Slot(9), 0, True, b"nonsense"))
    assert heard.frames == []


def test_a_link_that_is_gone_takes_its_parts_with_it(peers: Peers, heard: Heard) -> None:
    frame = Frame(1, "rows", (Row(0, b"k" * 300, b"v" * 300),))
    parts = parts_of(frame)
    assert peers.arrived(ONE, parts[0])
    peers.left(ONE)
    for part in parts:
        assert peers.arrived(ONE, part)

    assert heard.lost == [ONE]
    assert heard.frames == [(5, 9, 3, frame)]


def test_confirmations_are_passed_on(peers: Peers, heard: Heard) -> None:
    assert peers.arrived(ONE, CopyAck(5, 17, False))
    assert heard.acks == [(5, 17, False)]


async def test_a_server_outside_of_the_map_cannot_be_reached(peers: Peers, heard: Heard) -> None:
    peers.send(NodeId(42), SendAck(NodeId(42), 5, 1))
    async with asyncio.timeout(10):
        while not heard.lost:  # noqa: ASYNC110 it comes in a later turn of the loop
            await asyncio.sleep(0.001)

    assert heard.lost == [42]


@pytest.mark.parametrize(
    "name,node_id", [("node-7", 7), ("edge-0badcafe", None), ("", None), ("node-x", None)]
)
def test_a_server_is_known_by_its_name(name: str, node_id: int | None) -> None:
    assert node_of(name) == node_id
