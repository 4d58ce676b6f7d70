"""A POST for somebody who is there: scenarios C-033 to C-043, C-060 to C-062 and C-086."""

import asyncio

import pytest

from tests.e2e.platform import Serve
from tests.e2e.wire_clients import (
    BODY,
    Vapid,
    accepted,
    b64url,
    new_channel,
    user_agent,
    version_of,
)

pytestmark = pytest.mark.e2e


async def test_a_post_reaches_the_user_agent(server: Serve) -> None:
    """C-033: these five keys and no other"""
    channel_id = new_channel()
    async with user_agent(server.ws_url) as agent:
        endpoint = await agent.subscribe(channel_id)
        answer = await accepted(endpoint, BODY)
        message = await agent.notification(ack=True)

        assert message == {
            "messageType": "notification",
            "channelID": channel_id,
            "version": version_of(answer),
            "data": b64url(BODY),
            "headers": {"encoding": "aes128gcm"},
        }


async def test_headers_of_the_older_encryption_arrive_without_quotes_and_padding(
    server: Serve,
) -> None:
    """C-034"""
    async with user_agent(server.ws_url) as agent:
        endpoint = await agent.subscribe()
        await accepted(
            endpoint,
            encoding="aesgcm",
            headers={
                "Encryption": 'keyid="p256dh";salt="S82AseB7pAVBJ2143qtM3A=="',
                "Crypto-Key": 'keyid="p256dh";dh="BAQFBgcICQ=",p256ecdsa="BKL_-_8="',
            },
        )
        message = await agent.notification(ack=True)

        assert message["headers"] == {
            "encoding": "aesgcm",
            "encryption": "keyid=p256dh;salt=S82AseB7pAVBJ2143qtM3A",
            "crypto_key": "keyid=p256dh;dh=BAQFBgcICQ,p256ecdsa=BKL_-_8",
        }


async def test_bytes_that_are_no_text_arrive_as_they_were(server: Serve) -> None:
    """C-035"""
    async with user_agent(server.ws_url) as agent:
        endpoint = await agent.subscribe()
        await accepted(endpoint, bytes.fromhex("C328A0A1E228A1"))

        assert (await agent.notification(ack=True))["data"] == "wyigoeIooQ"


async def test_a_topic_is_not_told_to_the_user_agent(server: Serve) -> None:
    """C-036"""
    async with user_agent(server.ws_url) as agent:
        endpoint = await agent.subscribe()
        await accepted(endpoint, topic="Inbox", headers={"Urgency": "high"})
        message = await agent.notification(ack=True)

        assert set(message) == {"messageType", "channelID", "version", "data", "headers"}


async def test_the_answer_names_the_message_and_its_lifetime(server: Serve) -> None:
    """C-037"""
    async with user_agent(server.ws_url) as agent:
        endpoint = await agent.subscribe()
        answer = await accepted(endpoint, ttl=1234)
        message = await agent.notification(ack=True)

        assert answer.headers["location"] == f"{server.endpoint_url}/m/{message['version']}"
        assert answer.headers["ttl"] == "1234"
        assert answer.body == b""


async def test_a_signed_post_may_go_to_an_endpoint_without_a_key(server: Serve) -> None:
    """C-038"""
    async with user_agent(server.ws_url) as agent:
        endpoint = await agent.subscribe()
        await accepted(endpoint, vapid=Vapid())

        assert await agent.notification(ack=True)


async def test_ttl_zero_is_for_now_or_never(server: Serve) -> None:
    """C-039"""
    async with user_agent(server.ws_url) as agent:
        endpoint = await agent.subscribe()
        answer = await accepted(endpoint, ttl=0)
        message = await agent.notification()
        await agent.reconnect()

        assert version_of(answer) == message["version"]
        assert answer.headers["ttl"] == "0"
        await agent.expect_silence()


@pytest.mark.parametrize("how", ["leave", "vanish"])
@pytest.mark.parametrize("topic", [None, "Inbox"])
async def test_what_was_not_acked_comes_again(server: Serve, how: str, topic: str | None) -> None:
    """C-040: the same version, whichever way the connection ended"""
    async with user_agent(server.ws_url) as agent:
        endpoint = await agent.subscribe()
        await accepted(endpoint, topic=topic)
        first = await agent.notification()
        await (agent.leave() if how == "leave" else agent.vanish())
        await agent.connect()

        assert await agent.notification(ack=True) == first
        await agent.reconnect()
        await agent.expect_silence()


async def test_what_was_acked_does_not_come_again(server: Serve) -> None:
    """C-041"""
    async with user_agent(server.ws_url) as agent:
        endpoint = await agent.subscribe()
        await accepted(endpoint)
        await agent.notification(ack=True)
        await agent.reconnect()

        await agent.expect_silence()


@pytest.mark.parametrize("code", [100, 101, 102, 0, 65_535])
async def test_any_code_of_an_ack_ends_the_message(server: Serve, code: int) -> None:
    """C-041: 101 could not be decrypted, 102 not delivered"""
    async with user_agent(server.ws_url) as agent:
        endpoint = await agent.subscribe()
        await accepted(endpoint)
        await agent.ack(await agent.notification(), code=code)
        await agent.reconnect()

        await agent.expect_silence()


async def test_each_channel_has_its_own_messages(server: Serve) -> None:
    """C-042"""
    channels = [new_channel(), new_channel()]
    async with user_agent(server.ws_url) as agent:
        endpoints = [await agent.subscribe(channel_id) for channel_id in channels]
        for channel_id, endpoint in zip(channels, endpoints, strict=True):
            answer = await accepted(endpoint, channel_id.encode())
            message = await agent.notification(ack=True)

            assert message["channelID"] == channel_id
            assert message["version"] == version_of(answer)
            assert message["data"] == b64url(channel_id.encode())


async def test_fifty_in_a_row_without_an_ack_arrive_in_order(server: Serve) -> None:
    """C-043"""
    async with user_agent(server.ws_url) as agent:
        endpoint = await agent.subscribe()
        versions = [version_of(await accepted(endpoint)) for _ in range(50)]
        messages = await agent.notifications(50)

        assert [message["version"] for message in messages] == versions


async def test_beyond_the_window_messages_are_stored_and_come_after_the_acks(
    server: Serve,
) -> None:
    """C-043 and what is behind it: 128 un-acked, then the store"""
    async with user_agent(server.ws_url) as agent:
        endpoint = await agent.subscribe()
        versions = [version_of(await accepted(endpoint, b"%d" % n)) for n in range(128)]
        for n in range(12):
            await asyncio.sleep(0.002)  # within one millisecond two workers know no order
            versions.append(version_of(await accepted(endpoint, b"%d" % n)))
        direct = await agent.notifications(128)
        await agent.expect_silence(0.1)
        await agent.ack(*direct)
        stored = await agent.notifications(10)  # a batch
        await agent.ack(*stored)
        stored += await agent.notifications(2, ack=True)

        assert [message["version"] for message in direct + stored] == versions


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({}, id="C-060 without crypto headers"),
        pytest.param(
            {
                "Content-Encoding": "aesgcm",
                "Encryption": "salt=x",
                "Crypto-Key": "dh=x",
            },
            id="C-061 with crypto headers",
        ),
        pytest.param({"Content-Encoding": "nonsense", "Encryption": ";;"}, id="C-061 wrong ones"),
    ],
)
async def test_an_empty_message_has_neither_data_nor_headers(
    server: Serve, headers: dict[str, str]
) -> None:
    """Two back to back, without an ack in between, both arrive; then the same through the store."""
    channel_id = new_channel()
    async with user_agent(server.ws_url) as agent:
        endpoint = await agent.subscribe(channel_id)
        answers = [await accepted(endpoint, b"", headers=headers) for _ in range(2)]
        direct = await agent.notifications(2)
        await agent.ack(*direct)
        await agent.leave()
        answers += [await accepted(endpoint, b"", headers=headers) for _ in range(2)]
        await agent.connect()
        stored = await agent.notifications(2, ack=True)

        assert direct + stored == [
            {"messageType": "notification", "channelID": channel_id, "version": version_of(answer)}
            for answer in answers
        ]


async def test_a_full_block_in_base64_arrives_whole(server: Serve) -> None:
    """C-062: 4096 bytes of text, encrypted, in base64; direct and stored"""
    body = b"A" * 5624
    async with user_agent(server.ws_url) as agent:
        endpoint = await agent.subscribe()
        await accepted(endpoint, body)
        direct = await agent.notification(ack=True)
        await agent.leave()
        await accepted(endpoint, body)
        await agent.connect()
        stored = await agent.notification(ack=True)

        assert direct["data"] == stored["data"] == b64url(body)


async def test_a_replacement_outlives_the_ack_of_what_it_replaced(server: Serve) -> None:
    """C-086: the first was delivered from the store and is acked late"""
    async with user_agent(server.ws_url) as agent:
        endpoint = await agent.subscribe()
        await agent.leave()
        await accepted(endpoint, b"first", topic="Inbox")
        await agent.connect()
        first = await agent.notification()
        other = await accepted(endpoint, b"second", topic="Inbox")
        second = await agent.notification()
        await agent.ack(first)
        await agent.settled()
        await agent.reconnect()
        again = await agent.notification(ack=True)

        assert second["version"] == again["version"] == version_of(other)
        assert again["data"] == b64url(b"second")
        await agent.reconnect()
        await agent.expect_silence()
