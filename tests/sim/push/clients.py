"""User agents and app servers of the simulated push service: well-behaved, often offline.

A user agent subscribes, loses its connection in every possible way, reconnects elsewhere or twice
at once, and acks soon, late, in part or not at all for a while. In the quiet period it stays
connected and acks everything.
"""

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from tests.sim.push.checkers import Outcome, Post
from tests.sim.push.websocket_client import Wire
from tests.sim.sockets import SimNetLoop
from waystation.base.ids import dashed, new_uuid4, parse_uuid, simple
from waystation.net.http1.client import HttpClientConnection, StaleError
from waystation.net.loop import Port
from waystation.net.websocket.frames import OPCODE_PING
from waystation.push.model import ChannelId, MessageId, Uaid

if TYPE_CHECKING:
    from tests.sim.push.nodes import ConnectNode
    from tests.sim.push.world import PushWorld

CHANNELS_MAX = 3
HELLO_PATIENCE_S = 8.0
NEVER_S = 1e9
ENDPOINT_PORT = 80
REQUEST_PATIENCE_S = 60.0


class Talk:
    """What a user agent knows of one connection."""

    __slots__ = (
        "ack_after_s",
        "ack_share",
        "greeted",
        "last_direct",
        "node",
        "said_hello_at_s",
        "said_uaid",
        "unacked",
    )

    def __init__(self, node: "ConnectNode", said_uaid: Uaid | None, said_hello_at_s: float) -> None:
        self.node = node
        self.said_uaid = said_uaid
        self.said_hello_at_s = said_hello_at_s
        self.greeted = False
        self.last_direct = 0
        self.ack_share = 1.0  # acked soon; the rest later
        self.ack_after_s = 0.0
        self.unacked: list[MessageId] = []


class SimUserAgent:
    def __init__(self, world: "PushWorld", name: str) -> None:
        self._world = world
        self._rng = world.rng
        self.name = name
        self._host = world.sockets.host(name)
        self.uaid: Uaid | None = None
        self._said_hello_at_s = 0.0  # the last time
        self._lives = 0  # how often it got a new uaid
        self.paths: dict[ChannelId, bytes] = {}  # endpoints, by channel
        self._wanted = 1 + self._rng.randrange(CHANNELS_MAX)
        self._registering: ChannelId | None = None
        self._dropping: set[ChannelId] = set()
        self._dropped: dict[ChannelId, tuple[Wire, float]] = {}  # who said so, and when
        self.talks: dict[Wire, Talk] = {}

    @property
    def greeted(self) -> bool:
        return any(talk.greeted for talk in self.talks.values())

    # A life

    async def live(self) -> None:
        rng, world = self._rng, self._world
        await asyncio.sleep(rng.random() * 2)
        while not world.dancing:
            if not self.greeted:
                await self.connect()
            await asyncio.sleep(rng.expovariate(1 / 4))
            if not world.dancing:
                self._do_something()
            if rng.random() < 0.3:
                await asyncio.sleep(rng.random() * 3)

    async def dance(self) -> None:
        """Move once or more while everything is late but nothing fails: whoever is overlooked
        now has no later connection that would make up for it."""
        rng = self._rng
        for _ in range(rng.choice((0, 1, 1, 2))):
            await asyncio.sleep(rng.random() * 3)
            for wire in list(self.talks):
                match rng.choice(("hang up", "vanish", "cut", "keep")):
                    case "hang up":
                        self._end(wire, "hangs up")
                        wire.hang_up()
                    case "vanish":
                        self._end(wire, "vanishes")
                        wire.vanish()
                    case "cut":
                        wire.cut()
                    case _:
                        pass
            await self.connect()

    def _do_something(self) -> None:
        rng = self._rng
        if not self.talks:
            return
        wire = rng.choice(list(self.talks))
        match rng.choices(
            ("hang up", "vanish", "cut", "again", "unregister", "stall", "nothing"),
            (2, 3, 3, 4, 1, 1, 3),
        )[0]:
            case "hang up":
                self._end(wire, "hangs up")
                wire.hang_up()
            case "vanish":
                self._end(wire, "vanishes")
                wire.vanish()
            case "cut":
                self._world.history.note(self.name, "connection cut", self.uaid)
                wire.cut()
            case "again":
                self._world.spawn(self.connect())  # beside the one it has
            case "unregister":
                self._unregister(wire)
            case "stall":
                wire.stall()
                self._world.loop.call_later(rng.random() * 5, wire.read_again)
            case _:
                pass

    async def connect(self) -> None:
        world = self._world
        node, wire = await self._reach_a_node()
        now_s = self._said_hello_at_s = world.loop.time()
        # Without a subscription its uaid is of no use, and the node may never have stored it.
        talk = Talk(node, self.uaid if self.paths else None, now_s)
        if not world.quiet:
            talk.ack_share = self._rng.choice((1.0, 1.0, 1.0, 0.6, 0.3, 0.0))
            talk.ack_after_s = self._rng.choice((0.0, 0.0, 0.1, 2.0, 6.0, NEVER_S))
        self.talks[wire] = talk
        hello: dict[str, Any] = {"messageType": "hello", "use_webpush": True}
        if talk.said_uaid is not None:
            hello["uaid"] = simple(talk.said_uaid)
        world.history.note(self.name, f"says hello to {node.name}", self.uaid)
        wire.say(msgspec.json.encode(hello))
        if self.paths and not world.quiet and self._rng.random() < 0.6:
            self._be_posted_to()
        deadline = now_s + HELLO_PATIENCE_S
        while wire in self.talks and not talk.greeted and world.loop.time() < deadline:  # noqa: ASYNC110 looking costs nothing when time jumps
            await asyncio.sleep(0.25)
        if wire in self.talks and not talk.greeted:
            self._end(wire, "gives up waiting for")
            wire.vanish()

    async def _reach_a_node(self) -> "tuple[ConnectNode, Wire]":
        while True:
            node = self._rng.choice(self._world.connect_nodes)
            if node.up:
                with suppress(OSError):
                    return node, await Wire.dial(self, self._host, node.address)
            await asyncio.sleep(0.05 + self._rng.random())

    def _be_posted_to(self) -> None:
        """App servers know nothing of hellos, but this is when it is interesting to post."""
        assert self.uaid is not None
        rng = self._rng
        channel_id = rng.choice(list(self.paths))
        for _ in range(rng.choice((1, 3, 6))):
            self._world.loop.call_later(
                rng.random() * rng.choice((0.1, 0.5, 4.0)),
                rng.choice(self._world.app_servers).post,
                self.uaid,
                channel_id,
                self.paths[channel_id],
            )

    def _end(self, wire: Wire, how: str) -> None:
        talk = self.talks.pop(wire)
        self._world.history.note(self.name, f"{how} {talk.node.name}", self.uaid)
        self._registering = None

    def lost(self, wire: Wire, code: int) -> None:
        if wire in self.talks:
            self._end(wire, f"lost ({code})")

    # The end of the chaos

    async def settle(self) -> None:
        """Be connected, and ack all that is owed. Whom a node could not be told about connects
        anew; the others must have been told."""
        world = self._world
        for wire, talk in list(self.talks.items()):
            wire.read_again()
            talk.ack_share, talk.ack_after_s = 1.0, 0.0
            self._ack_now(wire)
        trouble_at_s = world.history.trouble_at.get(self.uaid or Uaid(b""), -1.0)
        while True:
            current = [talk.said_hello_at_s for talk in self.talks.values() if talk.greeted]
            if current and (max(current) > trouble_at_s and not world.skewed):
                break
            if current and world.skewed and max(current) > world.quiet_at_s:
                break
            await self.connect()

    @property
    def connected_to(self) -> str | None:
        """The node of its newest connection, which is where its route must lead."""
        newest = max(self.talks.values(), key=lambda talk: talk.said_hello_at_s, default=None)
        if newest is None or not newest.greeted or newest.said_hello_at_s != self._said_hello_at_s:
            return None
        return newest.node.node_id

    # What a node says

    def heard(self, wire: Wire, opcode: int, payload: bytes) -> None:
        talk = self.talks.get(wire)
        if talk is None:
            return
        if opcode == OPCODE_PING:
            wire.pong()
            return
        message = msgspec.json.decode(payload)
        match message["messageType"]:
            case "hello":
                self._greeted(wire, talk, message)
            case "register":
                self._registered(wire, message)
            case "unregister":
                self._unregistered(wire, message)
            case "notification":
                self._notified(wire, talk, message)
            case _:
                pass

    def _greeted(self, wire: Wire, talk: Talk, message: dict[str, Any]) -> None:
        raw = parse_uuid(message["uaid"])
        assert raw is not None
        uaid = Uaid(raw)
        history = self._world.history
        if self.uaid != uaid:
            if talk.said_uaid is not None and talk.said_uaid not in history.agent_gone_at:
                history.problem(f"{self.name} was forgotten, and nobody had removed it")
            if self.uaid is not None:
                history.agent_gone_at.setdefault(self.uaid, self._world.loop.time())
            self.paths.clear()
            self.uaid = uaid
            history.names[uaid] = f"{self.name}{'+' * self._lives}"
            self._lives += 1
            for other in list(self.talks):
                if other is not wire:  # they speak for one who is no more
                    self._end(other, "leaves")
                    other.vanish()
        talk.greeted = True
        self._register(wire)

    def _register(self, wire: Wire) -> None:
        if self._registering is None and len(self.paths) < self._wanted:
            channel_id = ChannelId(new_uuid4(self._rng.randbytes))
            self._registering = channel_id
            self._world.history.names[channel_id] = f"{self.name}/{len(self._world.channels)}"
            wire.say(
                msgspec.json.encode({"messageType": "register", "channelID": dashed(channel_id)})
            )

    def _registered(self, wire: Wire, message: dict[str, Any]) -> None:
        raw = parse_uuid(message["channelID"])
        if raw is None or raw != self._registering or self.uaid is None:
            return
        self._registering = None
        if message["status"] == 200:
            channel_id = ChannelId(raw)
            self.paths[channel_id] = message["pushEndpoint"].encode()
            self._world.channels.append((self.uaid, channel_id, self.paths[channel_id]))
        self._register(wire)

    def _unregister(self, wire: Wire) -> None:
        channel_id = self._rng.choice(list(self.paths)) if self.paths else None
        if channel_id is not None and channel_id not in self._dropping:
            self._dropping.add(channel_id)
            wire.say(
                msgspec.json.encode({"messageType": "unregister", "channelID": dashed(channel_id)})
            )

    def _unregistered(self, wire: Wire, message: dict[str, Any]) -> None:
        raw = parse_uuid(message["channelID"])
        assert raw is not None
        channel_id = ChannelId(raw)
        self._dropping.discard(channel_id)
        if message["status"] == 200:
            self.paths.pop(channel_id, None)
            self._dropped[channel_id] = wire, self._world.loop.time()
            self._world.history.note(self.name, "unregistered", self.uaid)

    def _notified(self, wire: Wire, talk: Talk, message: dict[str, Any]) -> None:
        assert self.uaid is not None
        message_id = MessageId(message["version"])
        history = self._world.history
        history.heard_by(self.name, self.uaid, message_id)
        direct = history.sent_direct.get(message_id, 0)
        if 0 < direct < talk.last_direct:
            history.problem(f"{self.name} got {history.name_of(message_id)} out of order")
        talk.last_direct = max(talk.last_direct, direct)
        channel_id = parse_uuid(message["channelID"])
        assert channel_id is not None
        told = self._dropped.get(ChannelId(channel_id))
        # On another connection it may have been on its way since before.
        if told is not None and (wire is told[0] or talk.said_hello_at_s > told[1]):
            history.heard_for_gone_channel(self.name, message_id)
        talk.unacked.append(message_id)
        if self._rng.random() < talk.ack_share:
            self._ack(wire, [message_id])
        elif talk.ack_after_s < NEVER_S:
            self._world.loop.call_later(
                talk.ack_after_s * self._rng.random(), self._ack, wire, [message_id]
            )

    def _ack(self, wire: Wire, message_ids: list[MessageId]) -> None:
        talk = self.talks.get(wire)
        if talk is None:
            if not self.talks:
                return
            wire = next(reversed(self.talks))  # on another connection than it came by
        else:
            for message_id in message_ids:
                if message_id in talk.unacked:
                    talk.unacked.remove(message_id)
        if self.uaid is not None:
            for message_id in message_ids:
                self._world.history.acked_by(self.name, self.uaid, message_id)
        updates = [{"channelID": None, "version": message_id} for message_id in message_ids]
        wire.say(msgspec.json.encode({"messageType": "ack", "updates": updates}))

    def _ack_now(self, wire: Wire) -> None:
        talk = self.talks[wire]
        if talk.unacked:
            self._ack(wire, list(talk.unacked))


class SimAppServer:
    """Posts for anybody, alone and in bursts, and withdraws now and then."""

    def __init__(self, world: "PushWorld", name: str) -> None:
        self._world = world
        self._rng = world.rng
        net = SimNetLoop(world.sockets.host(name), clock=world.clock)
        self._port = Port(net)
        self._idle: list[tuple[str, HttpClientConnection]] = []  # by the endpoint's name

    async def live(self) -> None:
        rng, world = self._rng, self._world
        while not world.quiet:
            await asyncio.sleep(rng.expovariate(1.2))
            if world.quiet or not world.channels:
                continue
            burst = rng.choice((1, 1, 1, 2, 4, 8))
            uaid, channel_id, path = rng.choice(world.channels[-8:])  # some are gone by now
            for _ in range(burst):
                self.post(uaid, channel_id, path)
            if rng.random() < 0.1:
                self._withdraw()

    def post(self, uaid: Uaid, channel_id: ChannelId, path: bytes) -> None:
        rng, world = self._rng, self._world
        topic = rng.choice(("a", "b")) if rng.random() < 0.35 else None
        ttl_s = rng.choices((0, 3, 15, 86_400), (1, 1, 1, 9))[0]
        post = Post(len(world.posts), uaid, channel_id, topic, ttl_s)
        world.posts[post.number] = post
        node = rng.choice(world.endpoint_nodes)
        world.history.began(post, node.name)
        world.spawn(self._post(post, path, node.name))

    async def _post(self, post: Post, path: bytes, node: str) -> None:
        lines = b"TTL: %d\r\nContent-Encoding: aes128gcm\r\n" % post.ttl_s
        if post.topic is not None:
            lines += b"Topic: %b\r\n" % post.topic.encode()
        outcome = await self._ask(node, b"POST " + path, lines, b"%06d" % post.number)
        if outcome == "unknown":
            self._world.history.trouble_at[post.uaid] = self._world.loop.time()
        self._world.history.ended(post, node, outcome)

    async def _ask(self, node: str, target: bytes, lines: bytes, body: bytes = b"") -> Outcome:
        kept = [pair for pair in self._idle if pair[0] == node]
        connection: HttpClientConnection | None = None
        if kept and self._rng.random() < 0.7:
            self._idle.remove(kept[0])
            connection = kept[0][1]
        try:
            async with asyncio.timeout(REQUEST_PATIENCE_S):
                if connection is None or not connection.is_usable:
                    connection = HttpClientConnection(self._port)
                    try:
                        await self._port.connect(connection, (node, ENDPOINT_PORT))
                    except OSError:
                        return "refused"
                answer = await connection.ask(
                    b"%b HTTP/1.1\r\nHost: push\r\n%bContent-Length: %d\r\n\r\n%b"
                    % (target, lines, len(body), body)
                )
        except (OSError, TimeoutError, StaleError):
            if connection is not None:
                connection.abort()
            return "unknown"
        if connection.is_usable:
            self._idle.append((node, connection))
        match answer.status:
            case 201 | 204:
                return "accepted"
            case 404 | 410:
                return "gone"
            case 503:
                return "refused"
            case status:
                self._world.history.problem(f"{node} answered {status}")
                return "refused"

    def _withdraw(self) -> None:
        world = self._world
        recent = [post for post in list(world.posts.values())[-20:] if post.outcome == "accepted"]
        if recent:
            post = self._rng.choice(recent)
            assert post.notification is not None
            world.history.withdrawn(post)
            node = self._rng.choice(world.endpoint_nodes)
            target = b"DELETE /m/" + post.notification.message_id.encode()
            world.spawn(self._withdrawn(node.name, target))

    async def _withdrawn(self, node: str, target: bytes) -> None:
        await self._ask(node, target, b"")
