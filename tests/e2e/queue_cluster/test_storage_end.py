"""Two storage servers with a scripted edge: streams, references, uncommitted queues, moves."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.e2e.queue.process import QueueServer
from tests.e2e.queue_cluster.scripted_edge import Box, EdgeSession, ScriptedEdge
from waystation.queue.cluster.cluster_store import ClusterStore
from waystation.queue.cluster.membership import Membership, enrol, new_invitation
from waystation.queue.cluster.slot_map import NOBODY, Node, NodeId, SlotMap
from waystation.queue.errors import Code
from waystation.queue.model import (
    SLOTS,
    LinkData,
    LinkId,
    QueueMode,
    RefKind,
    Slot,
    sender_id_from,
    slot_of,
)
from waystation.queue.wire.commands import Ack, Del, Lget, NewLink, Ping, Send, Sub
from waystation.queue.wire.delivery import decrypt_message
from waystation.queue.wire.link import ClientTransmission, ServerTransmission
from waystation.queue.wire.link_messages import (
    Cok,
    Cping,
    Cpong,
    DelRef,
    Duplicate,
    Frozen,
    GetRef,
    Moved,
    Newc,
    Newx,
    NotFound,
    RefIs,
    Sclose,
    SetRef,
    Spause,
    Sres,
    Sresume,
    Unknown,
    WrongSlot,
)
from waystation.queue.wire.responses import Err, Lnk, Msg, Ok, Pong, Response, Sok
from waystation.storage.open import open_cluster_store
from waystation.storage.settings import Store

HALF = SLOTS // 2
HERE, THERE = Slot(100), Slot(3000)  # of the first and of the second server
SETTINGS = Store(map_bytes=64 << 20)


class Pair(NamedTuple):
    servers: list[QueueServer]
    edge: Membership
    store_url: str


async def _committed(url: str, slot_map: SlotMap) -> None:
    store = await open_cluster_store(url, data_dir=Path("/"), settings=SETTINGS)
    try:
        assert await store.commit(slot_map)
    finally:
        await store.close()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    root = tmp_path_factory.mktemp("pair")
    url = f"embedded://{root / 'shared'}"
    invitation = new_invitation(url)
    servers = [QueueServer(root / name) for name in ("one", "two")]
    slot_map = SlotMap()
    for number, server in enumerate(servers, 1):
        keys = server.data_dir / "keys"
        keys.mkdir(parents=True, mode=0o700)
        server.data_dir.chmod(0o700)
        enrol(keys, invitation, node_id=NodeId(number))
        node = Node(
            node_id=NodeId(number), host="127.0.0.1", port=server.link_port, fingerprint=b""
        )
        slot_map = slot_map.with_node(node)
    slot_map = slot_map.claimed(range(HALF), NodeId(1)).claimed(range(HALF, SLOTS), NodeId(2))
    asyncio.run(_committed(url, slot_map.as_one_change(SlotMap())))
    edge = enrol(root / "edge", invitation, node_id=NOBODY)
    with servers[0], servers[1]:
        yield Pair(servers, edge, url)


@pytest.fixture
async def edges(pair: Pair) -> AsyncIterator[list[ScriptedEdge]]:
    edges = [await ScriptedEdge.connected(pair.edge, server.link_port) for server in pair.servers]
    yield edges
    for edge in edges:
        edge.close()
        await edge.until(lambda edge=edge: edge.is_lost)


@pytest.fixture
async def cluster_store(pair: Pair) -> AsyncIterator[ClusterStore]:
    store = await open_cluster_store(pair.store_url, data_dir=Path("/"), settings=SETTINGS)
    yield store
    await store.close()


def opened(edge: ScriptedEdge, stream: int = 1) -> EdgeSession:
    session = EdgeSession(stream)
    edge.open(session)
    return session


def body_of(box: Box, response: Response) -> bytes | None:
    assert isinstance(response, Msg), response
    return decrypt_message(box.box_key, response.message_id, response.encrypted).body


async def test_a_delegated_session_creates_sends_receives_and_acks(
    edges: list[ScriptedEdge],
) -> None:
    edge = edges[0]
    owner, sender = opened(edge, 1), opened(edge, 2)
    box = await edge.create(owner, HERE)
    sent = await edge.ask(sender, Send(False, b"hello"), box.ids.sender_id)
    _, entity_id, message = await edge.said(owner)

    assert slot_of(box.ids.recipient_id) == HERE
    assert isinstance(sent, Ok)
    assert entity_id == box.ids.recipient_id
    assert body_of(box, message) == b"hello"
    assert isinstance(message, Msg)
    ack = Ack(message.message_id)
    assert isinstance(await edge.ask(owner, ack, box.ids.recipient_id, box.signer), Ok)
    assert isinstance(await edge.ask(owner, Ping()), Pong)


async def test_a_proof_of_another_session_is_refused(edges: list[ScriptedEdge]) -> None:
    """Q-119: the bytes of one client's command are worth nothing in another's session."""
    edge = edges[0]
    owner, thief = opened(edge, 1), opened(edge, 2)
    box = await edge.create(owner, HERE)
    said, corr_id = owner.transmission(Sub(), box.ids.recipient_id, box.signer)
    edge.put(thief.stream, ClientTransmission(said))
    answered, _, response = await edge.said(thief)

    assert (answered, response) == (corr_id, Err(Code.AUTH))


async def test_an_uncommitted_queue_is_invisible_and_may_be_withdrawn(
    edges: list[ScriptedEdge],
) -> None:
    edge = edges[0]
    owner, sender = opened(edge, 1), opened(edge, 2)
    tx_id = secrets.token_bytes(16)
    box = await edge.draft(owner, HERE, tx_id)
    unseen = await edge.ask(sender, Send(False, b"x"), box.ids.sender_id)

    assert unseen == Err(Code.AUTH)
    assert isinstance(await edge.request(Newx(tx_id)), Cok)
    assert isinstance(await edge.request(Newc(tx_id)), NotFound)
    assert box.made.needs == ()


def chosen_corr_id() -> bytes:
    """One whose sender id does not happen to lead to `HERE`."""
    corr_id = secrets.token_bytes(24)
    return corr_id if slot_of(sender_id_from(corr_id)) != HERE else chosen_corr_id()


async def test_ids_that_clients_choose_need_references(edges: list[ScriptedEdge]) -> None:
    """Q-116 and Q-117, as far as the storage servers go."""
    first, second = edges
    owner, guest = opened(first, 1), opened(second, 7)
    corr_id, link_id = chosen_corr_id(), LinkId(b"\xff" + secrets.token_bytes(23))
    tx_id = secrets.token_bytes(16)
    data = LinkData(b"fixed", b"user")
    link = NewLink(sender_id_from(corr_id), data, link_id)
    box = await first.draft(owner, HERE, tx_id, mode=QueueMode.CONTACT, link=link, corr_id=corr_id)
    assert set(box.made.needs) == {RefKind.SENDER, RefKind.LINK}
    set_ref = SetRef(RefKind.LINK, link_id, HERE, tx_id)
    assert isinstance(await second.request(set_ref), Cok)
    assert isinstance(await second.request(set_ref), Cok)
    other = SetRef(RefKind.LINK, link_id, HERE, bytes(16))
    assert isinstance(await second.request(other), Duplicate)
    assert isinstance(await first.request(set_ref), WrongSlot)
    assert isinstance(await first.request(Newc(tx_id)), Cok)

    moved = await second.ask_for_word(guest, Lget(), link_id)
    assert isinstance(moved, Moved)
    assert (moved.kind, moved.home) == (RefKind.LINK, HERE)
    first.open(guest)
    assert await first.ask(guest, Lget(), link_id) == Lnk(box.ids.sender_id, data)
    assert await second.request(GetRef(RefKind.LINK, link_id)) == RefIs(HERE)
    said, _ = owner.transmission(Del(), box.ids.recipient_id, box.signer)
    first.put(owner.stream, ClientTransmission(said))
    dropped = [await first.word(owner.stream, DelRef) for _ in range(2)]
    _, _, deleted = await first.said(owner)
    assert isinstance(deleted, Ok)
    assert {(one.kind, one.entity_id) for one in dropped} == {
        (RefKind.LINK, link_id),
        (RefKind.SENDER, box.ids.sender_id),
    }
    assert isinstance(await second.request(DelRef(RefKind.LINK, link_id)), Cok)
    assert isinstance(await second.request(GetRef(RefKind.LINK, link_id)), NotFound)


async def test_what_is_not_ours_is_sent_on(edges: list[ScriptedEdge]) -> None:
    """Q-125, as far as the storage servers go."""
    edge = edges[0]
    session = opened(edge)
    foreign = bytes((THERE >> 4, (THERE & 15) << 4)) + secrets.token_bytes(22)
    word = await edge.ask_for_word(session, Send(False, b"x"), foreign)

    assert isinstance(word, Unknown)
    assert word.epoch >= 1
    pong = await edge.request(Cping())
    assert isinstance(pong, Cpong)
    assert pong.epoch >= 1


async def test_a_paused_stream_is_delivered_to_when_it_goes_on(edges: list[ScriptedEdge]) -> None:
    edge = edges[0]
    owner, sender = opened(edge, 1), opened(edge, 2)
    box = await edge.create(owner, HERE)
    edge.put(owner.stream, Spause())
    assert isinstance(await edge.ask(sender, Send(False, b"late"), box.ids.sender_id), Ok)
    assert not [frame for frame in edge.frames if frame.stream == owner.stream]
    edge.put(owner.stream, Sresume())
    _, _, message = await edge.said(owner)

    assert body_of(box, message) == b"late"


async def test_only_what_may_be_forwarded_is_done_on_a_forwarded_stream(
    edges: list[ScriptedEdge],
) -> None:
    """Q-129, as far as the storage servers go."""
    edge = edges[0]
    owner, relayed = opened(edge, 1), EdgeSession(2)
    box = await edge.create(owner, HERE)
    edge.open(relayed, forwarded=True)
    refused = await edge.ask(relayed, Sub(), box.ids.recipient_id, box.signer)

    assert refused == Err(Code.CMD_PROHIBITED)
    assert isinstance(await edge.ask(relayed, Send(False, b"x"), box.ids.sender_id), Ok)


async def test_a_stream_that_was_not_opened_is_closed(edges: list[ScriptedEdge]) -> None:
    edge = edges[0]
    session = EdgeSession(99)

    assert isinstance(await edge.ask_for_word(session, Ping(), b""), Sclose)


async def test_a_link_without_a_certificate_of_the_cluster_is_refused(
    pair: Pair, tmp_path: Path
) -> None:
    stranger = enrol(tmp_path, new_invitation("memory:"), node_id=NodeId(1))

    with pytest.raises((OSError, AssertionError)):
        await ScriptedEdge.connected(stranger, pair.servers[0].link_port)


async def test_a_link_that_is_not_understood_is_cut_and_the_others_go_on(
    pair: Pair, edges: list[ScriptedEdge]
) -> None:
    broken = await ScriptedEdge.connected(pair.edge, pair.servers[0].link_port)
    broken.put(1, RefIs(HERE))  # a word of servers
    await broken.until(lambda: broken.is_lost)

    assert isinstance(await edges[0].request(Cping()), Cpong)


async def test_a_slot_moves_with_everything_and_its_subscriber_goes_on(
    edges: list[ScriptedEdge], cluster_store: ClusterStore
) -> None:
    """Q-123 and Q-131, as far as the storage servers go: what was sent before, during and after is
    there once, in order; a subscription that came with NEW goes on by its grant, and by nobody
    else's."""
    first, second = edges
    slot = Slot(777)
    owner, sender = opened(first, 1), opened(first, 2)
    box = await first.create(owner, slot)
    sent: list[bytes] = []

    async def send(edge: ScriptedEdge) -> bool:
        body = b"%d" % len(sent)
        said, _ = sender.transmission(Send(False, body), box.ids.sender_id)
        edge.put(sender.stream, ClientTransmission(said))
        answered = (await edge.frame(sender.stream)).body
        if not isinstance(answered, ServerTransmission):
            return False
        sent.append(body)
        return True

    for _ in range(5):
        assert await send(first)
    _, _, delivered = await first.said(owner)
    slot_map = await cluster_store.read()
    assert await cluster_store.commit(slot_map.preparing(slot, NodeId(2)))
    while await send(first) and len(sent) < 100:  # noqa: ASYNC110 a queue holds 128
        await asyncio.sleep(0.02)
    async with asyncio.timeout(30):
        while (await cluster_store.read()).slots[slot].owner != NodeId(2):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    for session in (owner, sender):
        second.open(session)
    async with asyncio.timeout(30):
        while not await send(second):  # noqa: ASYNC110 until the new owner has read the map
            await asyncio.sleep(0.02)
    stranger = opened(second, 55)
    second.put(stranger.stream, Sres(box.ids.recipient_id))
    assert isinstance((await second.frame(stranger.stream)).body, NotFound)
    second.put(owner.stream, Sres(box.ids.recipient_id))
    await second.until(lambda: sum(f.stream == owner.stream for f in second.frames) >= 2)
    bodies = [f.body for f in second.frames if f.stream == owner.stream]
    assert any(isinstance(body, Cok) for body in bodies)
    second.frames = [f for f in second.frames if not isinstance(f.body, Cok)]
    _, _, message = await second.said(owner)
    assert message == delivered
    received: list[bytes | None] = []
    while isinstance(message, Msg):
        received.append(body_of(box, message))
        ack = Ack(message.message_id)
        message = await second.ask(owner, ack, box.ids.recipient_id, box.signer)

    assert received == sent
    send_again = Send(False, b"x")
    async with asyncio.timeout(30):  # frozen, until the former owner has read the map
        while isinstance(  # noqa: ASYNC110
            again := await first.ask_for_word(sender, send_again, box.ids.sender_id), Frozen
        ):
            await asyncio.sleep(0.02)
    assert isinstance(again, WrongSlot | Unknown)  # the rows may be erased by now
    resubscribed = await second.ask(owner, Sub(), box.ids.recipient_id, box.signer)
    assert isinstance(resubscribed, Sok)
