"""Permissions of commands; a refusal costs the same whatever its reason (§5.9)."""

import itertools
import secrets

import pytest

from waystation.queue import auth
from waystation.queue.errors import Blocked, Code
from waystation.queue.model import (
    AuthKey,
    Blocking,
    BlockReason,
    CorrId,
    DhPrivateKey,
    EntityId,
    KeyKind,
    Queue,
    QueueMode,
)
from waystation.queue.server import admission
from waystation.queue.server.admission import Case, look_up
from waystation.queue.server.checks import Proof, prove
from waystation.queue.store import QueueStore
from waystation.queue.wire.commands import (
    Command,
    Del,
    Lget,
    Lkey,
    New,
    Nsub,
    Off,
    Ping,
    Send,
    Skey,
    Sub,
)
from waystation.queue.wire.transmission import Transmission
from waystation.storage.memory.queue import MemoryQueueStore
from waystation.testing.conformance.queue_samples import (
    new_key,
    new_link,
    new_notifier,
    new_queue,
)

PROOF_BYTES = {kind: size for size, kind in auth.KIND_BY_PROOF_BYTES.items()}
RAW_BYTES = {KeyKind.ED25519: 32, KeyKind.ED448: 57, KeyKind.X25519: 32}


def said(command: Command, entity_id: bytes = b"", proof: bytes = bytes(64)) -> Transmission:
    return Transmission(CorrId(b"c"), EntityId(entity_id), command, proof, b"authorized")


async def stored(store: QueueStore, queue: Queue) -> Queue:
    assert await store.create(queue)
    return queue


@pytest.fixture
def store() -> MemoryQueueStore:
    return MemoryQueueStore()


@pytest.mark.parametrize("held,used", list(itertools.product(KeyKind, KeyKind)))
async def test_a_wrong_key_is_checked_like_no_queue(
    store: MemoryQueueStore,
    monkeypatch: pytest.MonkeyPatch,
    held: KeyKind,
    used: KeyKind,
) -> None:
    """Q-110, by counting: exactly one check of the presented kind, whoever is asked for. What it
    takes in time is measured in the benchmarks."""
    checked: list[KeyKind] = []

    def count(key: AuthKey, *_: object) -> bool:
        checked.append(key.kind)
        return False

    monkeypatch.setattr(auth, "_check_one", count)
    key = AuthKey(held, secrets.token_bytes(RAW_BYTES[held]))
    queue = await stored(store, new_queue(sender_key=key))
    proof = bytes(PROOF_BYTES[used])
    costs: list[list[KeyKind]] = []
    for command, entity_id in (
        (Sub(), queue.recipient_id),
        (Sub(), bytes(24)),
        (Sub(), queue.sender_id),
        (Send(False, b""), queue.sender_id),
        (Send(False, b""), bytes(24)),
        (Skey(key), bytes(24)),
        (Skey(AuthKey(used, bytes(RAW_BYTES[used]))), queue.sender_id),
    ):
        case = await look_up(store, said(command, entity_id, proof))
        asked = case.to_check(DhPrivateKey(bytes(32)))
        assert asked is not None
        assert not prove(asked)
        assert case.verdict(proven=False) is Code.AUTH
        costs.append(list(checked))
        checked.clear()

    # A queue of the memory store has one recipient key, of Ed25519.
    assert costs == [[used]] * len(costs)


async def test_a_queue_that_does_not_exist_is_judged_like_one_that_does(
    store: MemoryQueueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Q-110, by counting: whose key it would be is decided once, for whichever id."""
    judged: list[Command] = []
    keys_of = admission._keys

    def counted(command: Command, queue: Queue, *, has_proof: bool) -> tuple[AuthKey, ...] | None:
        judged.append(command)
        return keys_of(command, queue, has_proof=has_proof)

    monkeypatch.setattr(admission, "_keys", counted)
    queue = await stored(store, new_queue(link=new_link(), notifier=new_notifier()))
    assert queue.notifier is not None
    assert queue.link is not None
    commands: tuple[tuple[Command, bytes], ...] = (
        (Sub(), queue.recipient_id),
        (Send(False, b""), queue.sender_id),
        (Nsub(), queue.notifier.notifier_id),
        (Lkey(new_key()), queue.link.link_id),
    )
    for command, known in commands:
        for entity_id in (known, secrets.token_bytes(24)):
            await look_up(store, said(command, entity_id))

    assert judged == [command for command, _ in commands for _ in range(2)]


async def test_keys_come_from_the_command_where_the_queue_has_none_yet(
    store: MemoryQueueStore,
) -> None:
    key, link = new_key(), new_link()
    queue = await stored(store, new_queue(link=link))
    for command, entity_id in ((Skey(key), queue.sender_id), (Lkey(key), link.link_id)):
        case = await look_up(store, said(command, entity_id))

        assert case.keys == (key,)
        assert case.verdict(proven=True) is None
    created = await look_up(store, said(New(key, b"d" * 32)))  # pyright: ignore[reportArgumentType]
    assert created.keys == (key,)


async def test_a_secured_queue_is_secured_by_the_same_key_only(store: MemoryQueueStore) -> None:
    key = new_key()
    queue = await stored(store, new_queue(sender_key=key))

    assert (await look_up(store, said(Skey(key), queue.sender_id))).refused is None
    assert (await look_up(store, said(Skey(new_key()), queue.sender_id))).refused is Code.AUTH
    contact = await stored(store, new_queue(mode=QueueMode.CONTACT))
    assert (await look_up(store, said(Skey(key), contact.sender_id))).refused is Code.AUTH


async def test_a_send_has_a_proof_if_and_only_if_there_is_a_key(store: MemoryQueueStore) -> None:
    send = Send(False, b"")
    unsecured = await stored(store, new_queue())
    secured = await stored(store, new_queue(sender_key=new_key()))

    async def verdict(queue: Queue, proof: bytes) -> object:
        case = await look_up(store, said(send, queue.sender_id, proof))
        return case.verdict(proven=bool(proof))

    assert await verdict(unsecured, b"") is None
    assert await verdict(unsecured, bytes(64)) is Code.AUTH
    assert await verdict(secured, b"") is Code.AUTH
    assert await verdict(secured, bytes(64)) is None


@pytest.mark.parametrize(
    "mode,secured,open_",
    [
        (QueueMode.CONTACT, False, True),
        (QueueMode.CONTACT, True, True),
        (QueueMode.MESSAGING, False, False),
        (None, False, True),
        (None, True, False),
    ],
)
async def test_every_client_may_read_the_link_of_a_contact_address(
    store: MemoryQueueStore, mode: QueueMode | None, secured: bool, open_: bool
) -> None:
    link = new_link()
    key = new_key() if secured else None
    await stored(store, new_queue(mode=mode, link=link, sender_key=key))
    case = await look_up(store, said(Lget(), link.link_id, b""))

    assert (case.verdict(proven=False) is None) is open_


async def test_a_blocked_queue_says_why_to_its_owner_and_may_be_left(
    store: MemoryQueueStore,
) -> None:
    blocking = Blocking(BlockReason.CONTENT)
    notifier = new_notifier()
    queue = await stored(store, new_queue(notifier=notifier))
    await store.block(queue.recipient_id, blocking)

    async def verdict(command: Command, entity_id: bytes, *, proven: bool = True) -> object:
        return (await look_up(store, said(command, entity_id))).verdict(proven=proven)

    assert await verdict(Sub(), queue.recipient_id) == Blocked(blocking)
    assert await verdict(Sub(), queue.recipient_id, proven=False) is Code.AUTH
    assert await verdict(Off(), queue.recipient_id) is None
    assert await verdict(Del(), queue.recipient_id) is None
    assert await verdict(Nsub(), notifier.notifier_id) is None


async def test_a_suspended_queue_refuses_senders_alone(store: MemoryQueueStore) -> None:
    queue = await stored(store, new_queue())
    await store.suspend(queue.recipient_id)
    send = await look_up(store, said(Send(False, b""), queue.sender_id, b""))
    subscribe = await look_up(store, said(Sub(), queue.recipient_id))

    assert send.verdict(proven=False) is Code.AUTH
    assert subscribe.verdict(proven=True) is None


async def test_services_are_declined_without_a_check(store: MemoryQueueStore) -> None:
    sent = Transmission(
        CorrId(b"c"), EntityId(bytes(24)), Nsub(), bytes(64), b"authorized", bytes(64)
    )
    case = await look_up(store, sent)

    assert case.to_check(None) is None
    assert case.verdict(proven=False) is Code.SERVICE


async def test_what_names_no_queue_needs_none(store: MemoryQueueStore) -> None:
    case = await look_up(store, said(Ping(), proof=b""))

    assert case == Case(said(Ping(), proof=b""))
    assert case.to_check(None) is None
    assert isinstance(Proof((), b"", b"", CorrId(b""), None), tuple)
