"""The user agent on a real socket, against a scripted node."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from tests.certificates import Certificates
from waystation.client.encryption import b64url, encrypt
from waystation.client.push import NotConnectedError, SubscribeRefusedError, UserAgent
from waystation.client.subscriptions import StateFile, Subscription

UAID = "5f2b1c0de4a94d1c8f1b7a6c5d4e3f21"
Script = Callable[["Node", ServerConnection], Awaitable[None]]


class Node:
    """Answers hello and register like a connection node; keeps what it was told."""

    def __init__(self) -> None:
        self.url = ""
        self.uaids = iter([UAID] * 100)
        self.heard: list[dict[str, Any]] = []
        self.news = asyncio.Event()
        self.connections: list[ServerConnection] = []
        self.register_status = 200
        self.answers_pings = True
        self.on_welcome: Callable[[ServerConnection], Awaitable[None]] | None = None

    async def handle(self, socket: ServerConnection) -> None:
        self.connections.append(socket)
        try:
            async for frame in socket:
                message = json.loads(frame)
                self.heard.append(message)
                self.news.set()
                await self.answer(socket, message)
        except ConnectionClosed:
            return

    async def answer(self, socket: ServerConnection, message: dict[str, Any]) -> None:
        match message.get("messageType"):
            case "hello":
                reply = {"messageType": "hello", "uaid": next(self.uaids), "status": 200}
                await socket.send(json.dumps(reply | {"use_webpush": True, "broadcasts": {}}))
                if self.on_welcome is not None:
                    await self.on_welcome(socket)
            case "register":
                reply = {
                    "messageType": "register",
                    "channelID": message["channelID"],
                    "status": self.register_status,
                    "pushEndpoint": f"http://127.0.0.1:1/wpush/v1/{message['channelID']}",
                }
                await socket.send(json.dumps(reply))
            case "unregister":
                await socket.send(json.dumps(message | {"status": 200}))
            case None if self.answers_pings:
                await socket.send("{}")

    async def notify(self, subscription: Subscription, version: str, text: str) -> None:
        message = {
            "messageType": "notification",
            "channelID": subscription.channel_id,
            "version": version,
            "data": b64url(encrypt(text.encode(), subscription.public_keys).body),
            "headers": {"encoding": "aes128gcm"},
        }
        await self.connections[-1].send(json.dumps(message))

    async def hears(self, kind: str, count: int = 1) -> list[dict[str, Any]]:
        async with asyncio.timeout(10):
            while True:
                found = [m for m in self.heard if m.get("messageType", "ping") == kind]
                if len(found) >= count:
                    return found
                self.news.clear()
                await self.news.wait()


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    node = Node()
    async with serve(node.handle, "127.0.0.1", 0, compression=None, close_timeout=0.2) as server:
        node.url = f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"
        yield node


@asynccontextmanager
async def agent_of(node: Node, **options: Any) -> AsyncIterator[UserAgent]:
    options = {"backoff_base_s": 0.02, "request_timeout_s": 5.0} | options
    async with UserAgent(node.url, **options) as agent:
        yield agent


async def test_subscribing_receiving_and_acking(node: Node) -> None:
    async with agent_of(node) as agent:
        subscription = await agent.subscribe("BKey")
        await node.notify(subscription, "v1", "hello")
        received = await asyncio.wait_for(agent.receive(), 10)
        (ack,) = await node.hears("ack")

    assert received.text == "hello"
    assert ack["updates"] == [{"channelID": subscription.channel_id, "version": "v1", "code": 100}]
    assert node.heard[1]["key"] == "BKey"
    assert agent.uaid == UAID


async def test_a_user_agent_takes_leave_as_the_protocol_wants(node: Node) -> None:
    async with agent_of(node) as agent:
        await agent.connected(10)

    await asyncio.wait_for(node.connections[-1].wait_closed(), 10)
    assert node.connections[-1].close_code == 1001


async def test_messages_are_iterated(node: Node) -> None:
    texts: list[str] = []
    async with agent_of(node) as agent:
        subscription = await agent.subscribe()
        for number in range(3):
            await node.notify(subscription, f"v{number}", f"text {number}")
        async with asyncio.timeout(10):
            async for received in agent:
                texts.append(received.text)
                if len(texts) == 3:
                    break

    assert texts == ["text 0", "text 1", "text 2"]


async def test_without_auto_ack_the_caller_decides(node: Node) -> None:
    async with agent_of(node, auto_ack=False) as agent:
        subscription = await agent.subscribe()
        await node.notify(subscription, "v1", "x")
        received = await asyncio.wait_for(agent.receive(), 10)
        assert not [m for m in node.heard if m["messageType"] == "ack"]
        await agent.ack(received, 102)
        await agent.nack(received, 303)
        (nack,) = await node.hears("nack")

    (ack,) = await node.hears("ack")
    assert ack["updates"][0]["code"] == 102
    assert nack == {"messageType": "nack", "version": "v1", "code": 303}


async def test_a_broken_connection_is_made_again_and_duplicates_are_dropped(node: Node) -> None:
    async with agent_of(node) as agent:
        subscription = await agent.subscribe()
        await node.notify(subscription, "v1", "first")
        assert (await asyncio.wait_for(agent.receive(), 10)).text == "first"
        await node.connections[-1].close()
        await node.hears("hello", 2)
        await agent.connected(10)
        await node.notify(subscription, "v1", "first")
        await node.notify(subscription, "v2", "second")
        assert (await asyncio.wait_for(agent.receive(), 10)).text == "second"
        acks = await node.hears("ack", 3)

    assert [ack["updates"][0]["version"] for ack in acks] == ["v1", "v1", "v2"]
    assert (await node.hears("hello", 2))[1]["uaid"] == UAID
    assert agent.hellos == 2


async def test_a_user_agent_comes_back_with_what_it_saved(node: Node, tmp_path: Path) -> None:
    file = StateFile(tmp_path / "agent.json")
    async with agent_of(node, state_file=file) as agent:
        subscription = await agent.subscribe()

    async with agent_of(node, state_file=file) as agent:
        await agent.connected(10)
        await node.notify(subscription, "v1", "still here")
        assert (await asyncio.wait_for(agent.receive(), 10)).text == "still here"

    assert (await node.hears("hello", 2))[1]["uaid"] == UAID


async def test_a_changed_uaid_is_reported_and_subscribing_works_again(node: Node) -> None:
    lost: list[Subscription] = []
    again: asyncio.Future[Subscription] = asyncio.get_running_loop().create_future()
    node.uaids = iter([UAID, "00" * 16])

    async def on_lost(gone: Sequence[Subscription]) -> None:
        lost.extend(gone)
        again.set_result(await agent.subscribe())

    async with agent_of(node, on_lost=on_lost) as agent:
        first = await agent.subscribe()
        await node.connections[-1].close()
        second = await asyncio.wait_for(again, 10)

        assert lost == [first]
        assert list(agent.subscriptions) == [second.channel_id]
        assert agent.uaid == "00" * 16


async def test_unsubscribing(node: Node) -> None:
    async with agent_of(node) as agent:
        subscription = await agent.subscribe()
        await agent.unsubscribe(subscription.channel_id)

        assert agent.subscriptions == {}


async def test_a_refused_subscription_is_an_error(node: Node) -> None:
    node.register_status = 500
    async with agent_of(node) as agent:
        with pytest.raises(SubscribeRefusedError, match="500"):
            await agent.subscribe()


async def test_a_silent_node_is_pinged_and_then_left(node: Node) -> None:
    node.answers_pings = False
    async with agent_of(node, ping_interval_s=0.05, request_timeout_s=0.3):
        await node.hears("ping")
        await node.hears("hello", 2)

    assert len(node.connections) >= 2


async def test_a_node_that_answers_pings_is_kept(node: Node) -> None:
    async with agent_of(node, ping_interval_s=0.05):
        await node.hears("ping", 3)

    assert len(node.connections) == 1


async def test_broadcasts_reach_the_callback(node: Node) -> None:
    told: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    async with agent_of(node, on_broadcasts=told.put_nowait) as agent:
        await agent.subscribe_broadcasts({"a/b": "v1"})
        await node.hears("broadcast_subscribe")
        await node.connections[-1].send(
            json.dumps({"messageType": "broadcast", "broadcasts": {"a/b": "v2"}})
        )

        assert await asyncio.wait_for(told.get(), 10) == {"a/b": "v2"}
        assert agent.broadcasts == {"a/b": "v2"}


async def test_a_full_inbox_stops_reading_and_loses_nothing(node: Node) -> None:
    async with agent_of(node, inbox_max=2) as agent:
        subscription = await agent.subscribe()
        for number in range(20):
            await node.notify(subscription, f"v{number}", str(number))
        await asyncio.sleep(0.1)
        texts = [(await asyncio.wait_for(agent.receive(), 10)).text for _ in range(20)]

    assert texts == [str(number) for number in range(20)]


async def test_a_refused_connection_is_reported_with_the_reason(node: Node) -> None:
    async with UserAgent("ws://127.0.0.1:9", backoff_base_s=0.02) as agent:
        with pytest.raises(NotConnectedError, match=r"127\.0\.0\.1"):
            await agent.connected(0.3)


async def test_a_connection_that_breaks_before_the_answer_is_an_error(node: Node) -> None:
    async def hang_up(socket: ServerConnection, message: dict[str, Any]) -> None:
        if message.get("messageType") == "register":
            await socket.close()
        else:
            await Node.answer(node, socket, message)

    node.answer = hang_up
    async with agent_of(node) as agent:
        with pytest.raises(NotConnectedError):
            await agent.subscribe()


def test_the_pause_doubles_up_to_its_limit_and_is_random() -> None:
    agent = UserAgent("ws://127.0.0.1:9", backoff_base_s=1.0, backoff_max_s=8.0)

    pauses = [agent._backoff_s(failures) for failures in (0, 1, 2, 3, 4, 50)]
    for pause, ceiling in zip(pauses, (1, 2, 4, 8, 8, 8), strict=True):
        assert ceiling / 2 <= pause <= ceiling
    assert len({agent._backoff_s(9) for _ in range(5)}) == 5


async def test_a_node_with_tls(certificates: Certificates) -> None:
    node = Node()
    async with serve(
        node.handle, "127.0.0.1", 0, compression=None, ssl=certificates.server
    ) as server:
        node.url = f"wss://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"
        async with agent_of(node, tls=certificates.client) as agent:
            assert await agent.connected(10) == UAID


async def test_a_node_with_tls_of_the_systems_trust(
    certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody who has a certificate that everybody trusts should have to say so."""
    node = Node()
    async with serve(
        node.handle, "127.0.0.1", 0, compression=None, ssl=certificates.server
    ) as server:
        node.url = f"wss://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"
        async with agent_of(node) as stranger:
            with pytest.raises(NotConnectedError, match="CERTIFICATE_VERIFY_FAILED"):
                await stranger.connected(2)
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
        async with agent_of(node) as agent:
            assert await agent.connected(10) == UAID
