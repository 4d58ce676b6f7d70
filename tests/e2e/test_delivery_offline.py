"""A POST for somebody who is away: scenarios C-044 to C-068, C-085 and C-087."""

import asyncio
import time

import pytest
from cryptography.fernet import Fernet

from tests.e2e.platform import Serve
from tests.e2e.stores import opened
from tests.e2e.wire_clients import (
    BODY,
    Message,
    UserAgent,
    accepted,
    b64url,
    http,
    new_channel,
    post,
    user_agent,
    version_of,
)
from waystation.push.model import ChannelId, MessageId, Notification, SortKey, Uaid

pytestmark = pytest.mark.e2e


class Away:
    """A user agent that has left, and the endpoint of its one subscription."""

    def __init__(self, agent: UserAgent, endpoint: str, channel_id: str) -> None:
        self.agent = agent
        self.endpoint = endpoint
        self.channel_id = channel_id

    async def stored(self, *bodies: bytes, **options: object) -> list[str]:
        """The versions of what is posted now, in an order that both workers agree on."""
        versions: list[str] = []
        for body in bodies:
            await asyncio.sleep(0.002)  # within one millisecond two workers know no order
            versions.append(version_of(await accepted(self.endpoint, body, **options)))
        return versions


async def away(server: Serve) -> Away:
    agent = UserAgent(server.ws_url)
    await agent.connect()
    channel_id = new_channel()
    endpoint = await agent.subscribe(channel_id)
    await agent.leave()
    return Away(agent, endpoint, channel_id)


def versions(messages: list[Message]) -> list[str]:
    return [message["version"] for message in messages]


async def expired_by(moment: float) -> None:
    """TTL counts whole seconds from the one in which a message was accepted."""
    await asyncio.sleep(max(0.0, moment - time.time()))


async def test_it_arrives_right_after_hello(server: Serve) -> None:
    """C-044"""
    one = await away(server)
    answer = await accepted(one.endpoint, BODY, ttl=600)
    async with one.agent as agent:
        await agent.connect()
        message = await agent.notification(ack=True)

        assert answer.headers["ttl"] == "600"
        assert message == {
            "messageType": "notification",
            "channelID": one.channel_id,
            "version": version_of(answer),
            "data": b64url(BODY),
            "headers": {"encoding": "aes128gcm"},
        }


async def test_it_comes_again_until_it_is_acked(server: Serve) -> None:
    """C-045"""
    one = await away(server)
    sent = await one.stored(BODY)
    async with one.agent as agent:
        for _ in range(3):
            await agent.reconnect()
            assert versions([await agent.notification()]) == sent
        await agent.reconnect()
        await agent.notification(ack=True)
        await agent.reconnect()

        await agent.expect_silence()


async def test_two_that_were_not_acked_both_come_again(server: Serve) -> None:
    """C-046"""
    one = await away(server)
    sent = await one.stored(b"first", b"second")
    async with one.agent as agent:
        for _ in range(2):
            await agent.reconnect()
            assert versions(await agent.notifications(2)) == sent


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_two_that_were_acked_do_not(server: Serve, order: tuple[int, int]) -> None:
    """C-047: acked in any order"""
    one = await away(server)
    await one.stored(b"first", b"second")
    async with one.agent as agent:
        await agent.connect()
        messages = await agent.notifications(2)
        for index in order:
            await agent.ack(messages[index])
        await agent.reconnect()

        await agent.expect_silence()


async def test_of_two_only_the_one_that_was_not_acked_comes_again(server: Serve) -> None:
    """C-049"""
    one = await away(server)
    _, second = await one.stored(b"first", b"second")
    async with one.agent as agent:
        await agent.connect()
        messages = await agent.notifications(2)
        await agent.ack(messages[0])
        await agent.reconnect()
        assert versions([await agent.notification(ack=True)]) == [second]
        await agent.reconnect()

        await agent.expect_silence()


async def test_of_one_topic_only_the_last_arrives(server: Serve) -> None:
    """C-050"""
    one = await away(server)
    await one.stored(b"old", topic="Inbox")
    last = await one.stored(b"new", topic="Inbox")
    async with one.agent as agent:
        await agent.connect()
        message = await agent.notification(ack=True)

        assert [message["version"]] == last
        assert message["data"] == b64url(b"new")
        await agent.expect_silence()


async def test_a_topic_that_was_acked_does_not_come_again(server: Serve) -> None:
    """C-051"""
    one = await away(server)
    await one.stored(BODY, topic="Inbox")
    async with one.agent as agent:
        await agent.connect()
        await agent.notification(ack=True)
        await agent.reconnect()

        await agent.expect_silence()


async def test_topics_replace_each_other_only_within_one_channel(server: Serve) -> None:
    """C-052: two topics; one topic on two channels"""
    async with user_agent(server.ws_url) as agent:
        first, second = await agent.subscribe(), await agent.subscribe()
        await agent.leave()
        sent = [
            version_of(await accepted(first, topic="Inbox")),
            version_of(await accepted(first, topic="Calls")),
            version_of(await accepted(second, topic="Inbox")),
        ]
        await agent.connect()

        assert sorted(versions(await agent.notifications(3, ack=True))) == sorted(sent)
        await agent.expect_silence()


async def test_what_has_expired_does_not_arrive(server: Serve) -> None:
    """C-053, C-054, C-055: after its time, or with a TTL of 0; a later one of the topic does"""
    timed, topical, never = await away(server), await away(server), await away(server)
    await timed.stored(BODY, ttl=1)
    await topical.stored(BODY, topic="Inbox", ttl=1)
    await never.stored(BODY, ttl=0)
    expired_at = time.time() + 1.1
    async with never.agent as agent:
        await agent.connect()
        await agent.expect_silence()
    await expired_by(expired_at)
    async with timed.agent as agent:
        await agent.connect()
        await agent.expect_silence()
    async with topical.agent as agent:
        await agent.connect()
        await agent.expect_silence()
        await agent.leave()
        fresh = await topical.stored(b"fresh", topic="Inbox")
        await agent.connect()

        assert versions([await agent.notification(ack=True)]) == fresh


async def test_expired_ones_do_not_stand_in_the_way(server: Serve) -> None:
    """C-056, C-057: twelve expired before a good one; six good, six expired, one good"""
    many, mixed = await away(server), await away(server)
    await many.stored(*[b"old"] * 12, ttl=1)
    [good] = await many.stored(b"good")
    six = await mixed.stored(*[b"good"] * 6)
    await mixed.stored(*[b"old"] * 6, ttl=1)
    [seventh] = await mixed.stored(b"last")
    await expired_by(time.time() + 1.1)
    async with many.agent as agent:
        await agent.connect()
        assert versions([await agent.notification(ack=True)]) == [good]
        await agent.expect_silence(0.1)
    async with mixed.agent as agent:
        await agent.connect()
        batch = await agent.notifications(6)
        await agent.expect_silence()  # the batch of ten was filled by the expired ones
        await agent.ack(*batch)

        assert versions(batch) == six
        assert versions([await agent.notification(ack=True)]) == [seventh]


async def test_topics_come_first(server: Serve) -> None:
    """C-058"""
    one = await away(server)
    plain = await one.stored(b"1", b"2")
    topical = await one.stored(b"3", topic="Inbox")
    async with one.agent as agent:
        await agent.connect()
        received = versions(await agent.notifications(3, ack=True))

        assert received == topical + plain


async def test_at_most_ten_are_outstanding(server: Serve) -> None:
    """C-059"""
    one = await away(server)
    sent = await one.stored(*[b"%d" % n for n in range(25)])
    async with one.agent as agent:
        await agent.connect()
        received: list[Message] = []
        for size in (10, 10, 5):
            batch = await agent.notifications(size)
            await agent.expect_silence(0.1)
            await agent.ack(*batch[:-1])
            await agent.settled()
            await agent.expect_silence(0.1)  # one ack is missing
            await agent.ack(batch[-1])
            received += batch

        assert versions(received) == sent
        await agent.reconnect()
        await agent.expect_silence()


async def test_a_sender_may_take_a_stored_message_back(server: Serve) -> None:
    """C-063"""
    one = await away(server)
    answer = await accepted(one.endpoint)
    topical = await accepted(one.endpoint, topic="Inbox")
    kept = await one.stored(b"kept")
    for taken in (answer, topical):
        deleted = await http("DELETE", taken.headers["location"])

        assert (deleted.status, deleted.body) == (204, b"")
    async with one.agent as agent:
        await agent.connect()

        assert versions([await agent.notification(ack=True)]) == kept
        await agent.expect_silence()


async def test_taking_back_what_was_handed_back_works_too(server: Serve) -> None:
    """Trap T-4: what was direct, un-acked and stored at the disconnect keeps its key."""
    async with user_agent(server.ws_url) as agent:
        endpoint = await agent.subscribe()
        answer = await accepted(endpoint)
        await agent.notification()
        await agent.reconnect()
        assert await agent.notification()  # it has been stored meanwhile
        await agent.leave()
        deleted = await http("DELETE", answer.headers["location"])
        await agent.connect()

        assert deleted.status == 204
        await agent.expect_silence()


async def test_taking_back_an_old_topic_leaves_the_new_one(server: Serve) -> None:
    """Trap T-3"""
    one = await away(server)
    old = await accepted(one.endpoint, b"old", topic="Inbox")
    new = await one.stored(b"new", topic="Inbox")
    deleted = await http("DELETE", old.headers["location"])
    async with one.agent as agent:
        await agent.connect()

        assert deleted.status == 204
        assert versions([await agent.notification(ack=True)]) == new


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(None, id="garbage"),
        pytest.param("02:{uaid}:{chid}", id="wrong part count"),
        pytest.param("02:{uaid}:{chid}:1:2:3", id="too many parts"),
        pytest.param("07:{uaid}:{chid}:1700000000123", id="wrong prefix"),
        pytest.param("02:{uaid}:{chid}:soon", id="bad timestamp"),
        pytest.param("02:nobody:{chid}:1700000000123", id="no uaid"),
    ],
)
async def test_what_is_no_message_id_cannot_be_taken_back(server: Serve, text: str | None) -> None:
    """C-064"""
    ids = {"uaid": "0" * 32, "chid": "1" * 32}
    sealed = (
        "nonsense"
        if text is None
        else Fernet(server.crypto_key).encrypt(text.format(**ids).encode()).decode()
    )
    answer = await http("DELETE", f"{server.endpoint_url}/m/{sealed}")

    assert answer.error == (400, None)


async def test_taking_back_what_is_gone_is_answered_204(server: Serve) -> None:
    """C-065: no matter whether it ever was"""
    for text in (f"02:{'a' * 32}:{'b' * 32}:1700000000123", f"01:{'a' * 32}:{'b' * 32}:Inbox"):
        sealed = Fernet(server.crypto_key).encrypt(text.encode()).decode()
        answer = await http("DELETE", f"{server.endpoint_url}/m/{sealed}")

        assert (answer.status, answer.body) == (204, b"")


async def test_whoever_has_missed_too_much_begins_anew(strict_server: Serve) -> None:
    """C-066, C-068: msg_limit 20, 21 stored; the old endpoint is gone"""
    one = await away(strict_server)
    sent = await one.stored(*[b"%d" % n for n in range(21)])
    async with one.agent as agent:
        await agent.connect()
        old_uaid = agent.uaid
        received = [await agent.notification(ack=True) for _ in range(20)]

        assert versions(received) == sent[:20]
        assert await agent.closed() == 1000
        await agent.connect()
        assert agent.uaid != old_uaid
        assert (await post(one.endpoint)).error == (410, 106)


async def test_whoever_has_missed_too_much_and_leaves_with_the_last_ack_begins_anew(
    strict_server: Serve,
) -> None:
    """C-066: the close comes right behind the ack, and the next hello right behind the close."""
    one = await away(strict_server)
    await one.stored(*[b"%d" % n for n in range(21)])
    async with one.agent as agent:
        await agent.connect()
        old_uaid = agent.uaid
        await agent.notifications(20, ack=True)
        await agent.socket.close()
        await agent.connect()

        assert agent.uaid != old_uaid
        assert (await post(one.endpoint)).error == (410, 106)


async def test_exactly_the_limit_is_not_too_much(strict_server: Serve) -> None:
    """C-067"""
    one = await away(strict_server)
    sent = await one.stored(*[b"%d" % n for n in range(20)])
    async with one.agent as agent:
        await agent.connect()
        uaid = agent.uaid
        received = [await agent.notification(ack=True) for _ in range(20)]
        await agent.expect_silence()
        await agent.reconnect()

        assert versions(received) == sent
        assert agent.uaid == uaid
        await agent.expect_silence()


async def test_two_hundred_at_once_for_one_channel_all_arrive(server: Serve) -> None:
    """C-085: through both workers, many within one millisecond; none overwrites another."""
    one = await away(server)
    answers = await asyncio.gather(*[accepted(one.endpoint, b"%d" % n) for n in range(200)])
    async with one.agent as agent:
        await agent.connect()
        received = [await agent.notification(ack=True) for _ in range(200)]

        assert {message["data"] for message in received} == {b64url(b"%d" % n) for n in range(200)}
        assert sorted(versions(received)) == sorted(version_of(answer) for answer in answers)
        await agent.expect_silence()


async def test_a_late_writer_with_an_old_stamp_is_not_passed_over(server: Serve) -> None:
    """C-087: a row below everything that was already acked"""
    one = await away(server)
    await one.stored(b"newer")
    async with one.agent as agent:
        await agent.connect()
        await agent.notification(ack=True)
        await agent.settled()
        now_ms = int(time.time() * 1000)
        late_ms = now_ms - 60_000
        channel = ChannelId(bytes.fromhex(one.channel_id.replace("-", "")))
        text = f"02:{agent.uaid}:{channel.hex()}:{late_ms}"
        late = Notification(
            channel_id=channel,
            message_id=MessageId(Fernet(server.crypto_key).encrypt(text.encode()).decode()),
            sort_key=SortKey(f"02:{late_ms}:{one.channel_id}"),
            accepted_at_ms=late_ms,
            ttl_s=3600,
            data=b64url(b"late"),
            headers={"encoding": "aes128gcm"},
        )
        async with opened(server) as store:
            await store.save(Uaid(bytes.fromhex(agent.uaid)), late)
        told = [
            (await http("PUT", f"{node_id}/notif/{agent.uaid}")).status
            for node_id in server.node_ids
        ]
        message = await agent.notification(ack=True)

        assert sorted(told) == [200, 404]
        assert message["version"] == late.message_id
        await agent.reconnect()
        await agent.expect_silence()
