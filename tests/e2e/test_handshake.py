"""Hello and what comes before it, over real sockets: scenarios C-001 to C-018."""

import asyncio
import json
import time
import uuid

import pytest

from tests.e2e.platform import Autoconnect, Autoendpoint, Serve
from tests.e2e.stores import opened
from tests.e2e.wire_clients import (
    BINARY,
    CLOSE,
    TEXT,
    RawSocket,
    UserAgent,
    accepted,
    http,
    new_channel,
    user_agent,
)
from waystation.push.model import Uaid
from waystation.push.model import UserAgent as Record

pytestmark = pytest.mark.e2e


def is_uaid(text: str) -> bool:
    return len(text) == 32 and text == uuid.UUID(text).hex


async def known(server: Serve) -> UserAgent:
    """A user agent with a subscription, offline."""
    agent = UserAgent(server.ws_url)
    await agent.connect()
    await agent.subscribe()
    await agent.leave()
    return agent


async def test_a_new_user_agent_is_given_a_uaid(server: Serve) -> None:
    """C-001: exactly these five keys."""
    async with UserAgent(server.ws_url) as agent:
        reply = await agent.connect()

        assert is_uaid(reply.pop("uaid"))
        assert reply == {
            "messageType": "hello",
            "status": 200,
            "use_webpush": True,
            "broadcasts": {},
        }


async def test_a_user_agent_with_a_subscription_keeps_its_uaid(server: Serve) -> None:
    """C-002"""
    async with user_agent(server.ws_url) as agent:
        await agent.subscribe()
        first = agent.uaid

        assert (await agent.reconnect())["uaid"] == first


@pytest.mark.parametrize("given", ["", "invalid", "abc123", "0" * 31, "x" * 32, "f" * 500])
async def test_what_is_no_uaid_is_replaced_by_a_new_one(server: Serve, given: str) -> None:
    """C-003"""
    async with UserAgent(server.ws_url) as agent:
        reply = await agent.connect(uaid=given)

        assert is_uaid(reply["uaid"])
        assert reply["uaid"] != given


async def test_a_uaid_that_nobody_knows_is_not_adopted(server: Serve) -> None:
    """C-004"""
    unknown = uuid.uuid4().hex
    async with UserAgent(server.ws_url) as agent:
        reply = await agent.connect(uaid=unknown)

        assert is_uaid(reply["uaid"])
        assert reply["uaid"] != unknown


async def test_a_uaid_without_a_subscription_was_never_stored(server: Serve) -> None:
    """C-005"""
    async with user_agent(server.ws_url) as agent:
        first = agent.uaid

        assert (await agent.reconnect())["uaid"] != first


async def test_a_uaid_is_understood_with_dashes_and_answered_without(server: Serve) -> None:
    """C-006"""
    async with await known(server) as agent:
        reply = await agent.connect(uaid=str(uuid.UUID(agent.uaid)))

        assert reply["uaid"] == agent.uaid
        assert is_uaid(reply["uaid"])


@pytest.mark.parametrize(
    "first",
    [
        {"messageType": "register", "channelID": new_channel()},
        {"messageType": "ack", "updates": []},
        {"messageType": "ping"},
        {},
    ],
)
async def test_whoever_does_not_begin_with_hello_is_cut_off(server: Serve, first: object) -> None:
    """C-007"""
    async with await UserAgent(server.ws_url).open() as agent:
        await agent.send(first)

        assert await agent.closed() == 1011


async def test_a_second_hello_ends_the_connection(server: Serve) -> None:
    """C-008"""
    async with user_agent(server.ws_url) as agent:
        await agent.send({"messageType": "hello", "use_webpush": True})

        assert await agent.closed() == 1011


async def test_a_second_hello_is_refused_with_words_where_these_are_wanted(
    strict_server: Serve,
) -> None:
    """C-008 with ws_error_replies"""
    async with user_agent(strict_server.ws_url) as agent:
        await agent.send({"messageType": "hello", "use_webpush": True})
        reply = await agent.expect("hello")

        assert reply["status"] == 401
        assert reply["reason"] == "duplicate hello"
        assert reply["more_info"].startswith("http")
        assert await agent.closed() == 1011


async def test_who_says_nothing_in_time_is_cut_off(impatient_server: Serve) -> None:
    """C-009"""
    began = time.monotonic()  # before the server's clock: we may be slow to hear that it is open
    async with await UserAgent(impatient_server.ws_url).open() as agent:
        assert await agent.closed() == 1011
        assert time.monotonic() - began >= 0.9


@pytest.mark.parametrize("text", ["[]", '"hello"', "7", "null", "{", "", "hello", '{"a":1}'])
@pytest.mark.parametrize("greeted", [False, True])
async def test_what_is_no_message_ends_the_connection(
    server: Serve, text: str, greeted: bool
) -> None:
    """C-010: bad JSON, and JSON that is no object"""
    async with await UserAgent(server.ws_url).open() as agent:
        if greeted:
            await agent.hello()
        await agent.send(text)

        assert await agent.closed() == 1011


@pytest.mark.parametrize("greeted", [False, True])
async def test_a_binary_frame_ends_the_connection(server: Serve, greeted: bool) -> None:
    """C-010"""
    async with await UserAgent(server.ws_url).open() as agent:
        if greeted:
            await agent.hello()
        await agent.socket.send(b'{"messageType":"hello"}')

        assert await agent.closed() == 1003


@pytest.mark.parametrize("kind", ["unknown", "Hello", "notification", 7, None])
async def test_an_unknown_kind_of_message_ends_the_connection(server: Serve, kind: object) -> None:
    """C-011"""
    async with user_agent(server.ws_url) as agent:
        await agent.send({"messageType": kind})

        assert await agent.closed() == 1011


async def test_the_subprotocol_is_echoed_if_it_was_offered(server: Serve) -> None:
    """C-012"""
    async with UserAgent(server.ws_url) as agent:
        await agent.open(subprotocols=["other", "push-notification"])

        assert agent.socket.subprotocol == "push-notification"
        assert (await agent.hello())["status"] == 200


async def test_no_subprotocol_is_fine_too(server: Serve) -> None:
    """C-012: and what was not offered is not echoed"""
    async with UserAgent(server.ws_url) as agent:
        await agent.open()

        assert agent.socket.subprotocol is None
        assert (await agent.hello())["status"] == 200


async def test_of_two_connections_of_one_uaid_the_newer_stays(server: Serve) -> None:
    """C-013: whichever worker each of them reached"""
    for _ in range(4):  # two workers: some of these meet on one, some on both
        async with user_agent(server.ws_url) as older, UserAgent(server.ws_url) as newer:
            endpoint = await older.subscribe()
            await asyncio.sleep(0.002)  # connected_at has a resolution of one millisecond
            newer.uaid = older.uaid
            await newer.connect()

            assert await older.closed() == 1011
            await accepted(endpoint)
            assert await newer.notification(ack=True)


async def test_a_claim_from_the_future_refuses_the_hello(server: Serve) -> None:
    """C-014: connected elsewhere, or a clock is wrong; the record stays as it is."""
    agent = await known(server)
    uaid = Uaid(bytes.fromhex(agent.uaid))
    future = Record(
        uaid=uaid,
        connected_at_ms=int(time.time() * 1000) + 3_600_000,
        node_id="http://127.0.0.1:9",
    )
    async with opened(server) as store:
        assert await store.claim_route(future)
        before = await store.get_user_agent(uaid)
        async with agent:
            await agent.open()
            await agent.send({"messageType": "hello", "use_webpush": True, "uaid": agent.uaid})

            assert await agent.closed() == 1011
        after = await store.get_user_agent(uaid)

        assert before == after
        assert after is not None
        assert after.connected_at_ms == future.connected_at_ms


async def test_after_a_move_between_workers_a_post_finds_the_new_one(server: Serve) -> None:
    """C-015 within a node"""
    async with user_agent(server.ws_url) as agent:
        endpoint = await agent.subscribe()
        for turn in range(6):  # every move may lead to the other worker
            body = b"turn %d" % turn
            await agent.vanish()
            await agent.connect()
            answer = await accepted(endpoint, body)
            message = await agent.notification(ack=True)

            assert message["version"] == answer.headers["location"].rpartition("/")[2]


async def test_after_a_move_between_nodes_a_post_finds_the_new_one(
    two_nodes: tuple[Autoconnect, Autoconnect, Autoendpoint],
) -> None:
    """C-015: two connection nodes; the older socket is told to go."""
    first, second, _ = two_nodes
    async with user_agent(first.ws_url) as older, UserAgent(second.ws_url) as newer:
        endpoint = await older.subscribe()
        await asyncio.sleep(0.002)
        newer.uaid = older.uaid
        reply = await newer.connect()
        await accepted(endpoint)

        assert reply["uaid"] == older.uaid
        assert await newer.notification(ack=True)
        assert await older.closed() == 1011


async def test_a_hello_may_hold_what_firefox_puts_into_it(server: Serve) -> None:
    """C-017"""
    async with UserAgent(server.ws_url) as agent:
        reply = await agent.connect(
            broadcasts=None, channelIDs=[], extra={"deep": [1]}, wakeup_hostport=None
        )

        assert reply["broadcasts"] == {}


async def test_the_daemon_greets_everybody_as_a_user_agent_of_web_push(
    two_nodes: tuple[Autoconnect, Autoconnect, Autoendpoint],
) -> None:
    """Autopush has no SimplePush any more, and ignores `use_webpush`."""
    async with UserAgent(two_nodes[0].ws_url) as agent:
        reply = await agent.connect(use_webpush=False)

        assert reply["use_webpush"] is True
        assert "/wpush/v1/" in await agent.subscribe()


async def test_a_hello_may_list_its_channels(server: Serve) -> None:
    """C-017: they are not used"""
    async with UserAgent(server.ws_url) as agent:
        assert (await agent.connect(channelIDs=[new_channel()], uaid=None))["status"] == 200


@pytest.mark.parametrize("channels", [["nonsense"], [new_channel(), ""], [7], "all"])
async def test_a_hello_with_bad_channels_is_refused(server: Serve, channels: object) -> None:
    """C-018"""
    async with await UserAgent(server.ws_url).open() as agent:
        await agent.send({"messageType": "hello", "use_webpush": True, "channelIDs": channels})

        assert await agent.closed() == 1011


async def test_the_server_does_not_wait_for_an_answer_to_its_close(server: Serve) -> None:
    """Firefox never answers a Close frame; TCP ends right behind it."""
    async with await RawSocket.open(server.ws_url) as raw:
        raw.send(BINARY, b"x")
        opcode, payload = await raw.frame()

        assert opcode == CLOSE
        assert int.from_bytes(payload[:2], "big") == 1003
        await raw.ended(2.0)


async def test_a_hello_may_come_in_fragments(server: Serve) -> None:
    hello = json.dumps({"messageType": "hello", "use_webpush": True}).encode()
    async with await RawSocket.open(server.ws_url) as raw:
        raw.send(TEXT, hello[:10], fin=False)
        raw.send(0, hello[10:])
        opcode, payload = await raw.frame()

        assert opcode == TEXT
        assert json.loads(payload)["status"] == 200


async def test_a_message_beyond_the_limit_ends_the_connection(server: Serve) -> None:
    async with user_agent(server.ws_url) as agent:
        await agent.send({"messageType": "ack", "updates": [], "padding": "x" * 70_000})

        assert await agent.closed() in (1002, 1009)


async def test_a_plain_request_for_the_websocket_is_an_error_of_the_client(server: Serve) -> None:
    answer = await http("GET", server.ws_url.replace("ws://", "http://"))

    assert 400 <= answer.status < 500
