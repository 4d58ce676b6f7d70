"""Clients of a cluster of three servers, through its edge."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tests.e2e.queue.peer import Mailbox, Peer, Signer
from tests.e2e.queue.process import QueueServer
from tests.e2e.queue.through import Through, address_of, introduce
from tests.e2e.queue_cluster.cluster import Cluster
from waystation.queue.errors import Code
from waystation.queue.identity import Identity, ensure_identity
from waystation.queue.model import (
    KeyKind,
    LinkData,
    QueueMode,
    slot_of,
)
from waystation.queue.wire.commands import (
    Del,
    Key,
    Ping,
    Que,
    Send,
    Skey,
    Sub,
)
from waystation.queue.wire.responses import (
    End,
    Err,
    Info,
    Ok,
    Pong,
)

LINK = LinkData(b"f" * 2048, b"u" * 13824)


class Front:
    """The edge as the blocking client of the tests knows a server."""

    def __init__(self, made: Cluster) -> None:
        self.cluster = made
        self.port = made.address.port
        self.data_dir = made.folder(0)

    @property
    def identity(self) -> Identity:
        return ensure_identity(self.data_dir / "keys" / "queue", host="")


@pytest.fixture
def front(running: Cluster) -> QueueServer:
    return cast(Any, Front(running))


@pytest.fixture
def peer(front: QueueServer) -> Iterator[Peer]:
    with Peer(front) as one:
        yield one


@pytest.fixture
def other(front: QueueServer) -> Iterator[Peer]:
    with Peer(front) as one:
        yield one


def thirds(boxes: list[Mailbox]) -> set[int]:
    return {slot_of(box.recipient_id) * 3 // 4096 for box in boxes}


def test_queues_on_all_servers_for_one_client(peer: Peer, other: Peer) -> None:
    """Q-114, Q-115, Q-121: new queues spread; ids of one queue share their slot; all deliver."""
    boxes = [peer.create() for _ in range(20)]

    assert thirds(boxes) == {0, 1, 2}
    for box in boxes:
        assert slot_of(box.recipient_id) == slot_of(box.sender_id)
        other.send(box)
    received = {peer.next().entity_id for _ in boxes}
    assert received == {box.recipient_id for box in boxes}
    assert isinstance(peer.ask(Ping()), Pong)


@pytest.mark.parametrize("version", [8, 18])
@pytest.mark.parametrize("kind", KeyKind)
def test_the_basic_cycle(front: QueueServer, version: int, kind: KeyKind) -> None:
    """Q-019, Q-120: proofs of every kind are checked by the server that has the queue."""
    signer = Signer(kind)
    with Peer(front, version=version) as peer, Peer(front, version=version) as sender:
        box = peer.create(signer=Signer(kind), mode=None if version < 9 else QueueMode.MESSAGING)
        sender.send(box, b"first")
        assert peer.take(box) == b"first"
        assert isinstance(peer.ask(Key(signer.public), box.recipient_id, box.signer), Ok)
        assert sender.fault(Send(False, b"x"), box.sender_id) is Code.AUTH
        sender.send(box, b"second", signer=signer)
        assert peer.take(box) == b"second"
        assert peer.fault(Sub(), box.recipient_id, signer) is Code.AUTH
        assert isinstance(peer.ask(Que(), box.recipient_id, box.signer), Info)
        assert isinstance(peer.ask(Del(), box.recipient_id, box.signer), Ok)
        assert sender.fault(Send(False, b"x"), box.sender_id, signer) is Code.AUTH


def test_a_proof_of_another_session_is_refused(peer: Peer, other: Peer) -> None:
    """Q-119"""
    box = peer.create()
    said, _ = peer.transmission(Sub(), box.recipient_id, box.signer)

    other.write(said)

    answer = other.next()
    assert answer.response == Err(Code.AUTH)


def test_subscriptions_move_between_clients(peer: Peer, other: Peer) -> None:
    """Q-060, Q-122"""
    box = peer.create()
    other.send(box)
    message = peer.received(box)

    other.subscribe(box)

    assert isinstance(peer.event(End, box.recipient_id), End)
    assert other.received(box).message_id == message.message_id
    assert peer.fault(Sub(), b"unknown", box.signer) is Code.AUTH


def test_a_foreign_proxy_reaches_every_server(
    front: QueueServer, peer: Peer, tmp_path: Path
) -> None:
    """Q-129"""
    boxes = [peer.create() for _ in range(6)]
    with QueueServer(tmp_path / "foreign") as foreign, Peer(foreign) as proxy:
        through = Through(proxy, introduce(proxy, address_of(front)))
        for box in boxes:
            assert through.ask(Send(False, b"from afar"), box.sender_id) == Ok()
        assert through.ask(Sub(), boxes[0].recipient_id, boxes[0].signer) == Err(
            Code.CMD_PROHIBITED
        )
        signer = Signer()
        assert through.ask(Skey(signer.public), boxes[0].sender_id, signer) == Ok()
    assert {peer.next().entity_id for _ in boxes} == {box.recipient_id for box in boxes}
