"""Sending through a scripted proxy."""

import asyncio
import hashlib
from collections.abc import Awaitable
from typing import TypeVar

import pytest

from tests.unit.client.queue.certificates import SESSION_KEY, Authority
from tests.unit.client.queue.peer import Heard, Peer, Server
from waystation.client.queue.address import ServerAddress
from waystation.client.queue.boxes import box_key, seal_padded, unseal_padded
from waystation.client.queue.client import QueueClient
from waystation.client.queue.encoding import Reader, large, short, some, u16
from waystation.client.queue.error_replies import QueueFullError, RefusedError, TemporaryError
from waystation.client.queue.forwarding import FORWARDED_BYTES
from waystation.client.queue.hello import IdentityError
from waystation.client.queue.keys import PrivateKey, dh_key
from waystation.client.queue.queue_secrets import SenderQueue
from waystation.client.queue.relay import Relay
from waystation.client.queue.transmission import decode_batch, encode_batch

T = TypeVar("T")
AUTHORITY = Authority()
RELAY = ServerAddress(hashlib.sha256(AUTHORITY.chain[1]).digest(), ("relay.test",))
SENDER = SenderQueue(b"s" * 24, PrivateKey.generate("x25519"))


async def soon(waited: Awaitable[T]) -> T:
    async with asyncio.timeout(20):
        return await waited


def pkey(session_id: bytes) -> bytes:
    chain = some(map(large, AUTHORITY.chain))
    return b"PKEY " + short(session_id) + u16(8) + u16(17) + chain + large(AUTHORITY.signed_key)


def opened(heard: Heard) -> tuple[bytes, bytes]:
    """As the relay reads it: the inner command, and the key for the answer."""
    reader = Reader(heard.command.removeprefix(b"PFWD "))
    assert reader.u16() == 17
    derived = box_key(dh_key(reader.short()), SESSION_KEY.seed)
    (inner,) = decode_batch(unseal_padded(derived, heard.corr_id, reader.tail()))
    parts = Reader(inner)
    auth = parts.short()
    if auth:
        assert not parts.maybe()
    assert (parts.short(), parts.short()) == (heard.corr_id, SENDER.sender_id)
    return parts.tail(), derived


def answer(peer: Peer, heard: Heard, words: bytes) -> None:
    _, derived = opened(heard)
    inner = b"\0" + short(heard.corr_id) + short(SENDER.sender_id) + words
    sealed = seal_padded(derived, heard.corr_id[::-1], encode_batch([inner]), FORWARDED_BYTES)
    peer.answer(heard, b"PRES " + sealed)


async def test_a_session_with_the_relay_is_asked_for_once(
    client: QueueClient, server: Server
) -> None:
    relay = Relay(client, RELAY)
    tasks = [asyncio.ensure_future(relay.send(SENDER, b"%d" % number)) for number in range(3)]
    peer = await soon(server.peer())
    asked = await soon(peer.hear())
    peer.say((asked.corr_id, b"", pkey(b"r" * 32)))
    sent = [await soon(peer.hear()) for _ in tasks]
    for heard in sent:
        answer(peer, heard, b"OK")
    await soon(asyncio.gather(*tasks))

    assert asked.command.startswith(b"PRXY ")
    assert [opened(heard)[0] for heard in sent] == [b"SEND F 0", b"SEND F 1", b"SEND F 2"]
    assert {heard.entity_id for heard in sent} == {b"r" * 32}


async def test_a_proxy_that_has_lost_the_relay_is_asked_again(
    client: QueueClient, server: Server
) -> None:
    task = asyncio.ensure_future(Relay(client, RELAY).send(SENDER, b"hello"))
    peer = await soon(server.peer())
    peer.say(((await soon(peer.hear())).corr_id, b"", pkey(b"1" * 32)))
    first = await soon(peer.hear())
    peer.answer(first, b"ERR PROXY NO_SESSION")
    peer.say(((await soon(peer.hear())).corr_id, b"", pkey(b"2" * 32)))
    second = await soon(peer.hear())
    answer(peer, second, b"OK")
    await soon(task)

    assert (first.entity_id, second.entity_id) == (b"1" * 32, b"2" * 32)
    assert opened(second)[0] == b"SEND F hello"


@pytest.mark.parametrize(
    "words, error",
    [
        (b"ERR PROXY BROKER TIMEOUT", TemporaryError),
        (b"ERR PROXY PROTOCOL BLOCK", RefusedError),
        (b"ERR PROXY BASIC_AUTH", RefusedError),
    ],
)
async def test_a_refusal_of_the_proxy_is_raised(
    client: QueueClient, server: Server, words: bytes, error: type[Exception]
) -> None:
    task = asyncio.ensure_future(Relay(client, RELAY).send(SENDER, b"hello"))
    peer = await soon(server.peer())
    peer.say(((await soon(peer.hear())).corr_id, b"", words))

    with pytest.raises(error):
        await soon(task)


async def test_a_refusal_of_the_relay_is_raised_as_without_a_proxy(
    client: QueueClient, server: Server
) -> None:
    task = asyncio.ensure_future(Relay(client, RELAY).send(SENDER, b"hello"))
    peer = await soon(server.peer())
    peer.say(((await soon(peer.hear())).corr_id, b"", pkey(b"r" * 32)))
    answer(peer, await soon(peer.hear()), b"ERR QUOTA")

    with pytest.raises(QueueFullError):
        await soon(task)


async def test_nothing_is_sent_through_a_proxy_that_shows_another_relay(
    client: QueueClient, server: Server
) -> None:
    stranger = ServerAddress(b"x" * 32, ("relay.test",))
    task = asyncio.ensure_future(Relay(client, stranger).send(SENDER, b"hello"))
    peer = await soon(server.peer())
    peer.say(((await soon(peer.hear())).corr_id, b"", pkey(b"r" * 32)))

    with pytest.raises(IdentityError):
        await soon(task)
