"""A worker for tests: the real driver and connections over a shell that only records."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import msgspec

from tests.unit.push.connect.talk import CHANNEL, NODE, NOW_MS, UAID, endpoint_for
from waystation.base.clock import ManualClock
from waystation.base.errors import UnavailableError
from waystation.base.ids import dashed, new_uuid4, simple
from waystation.base.tasks import Tasks
from waystation.net.connection import ENDING, OPEN
from waystation.net.loop import NetLoop, Port
from waystation.net.websocket.connection import Handler, WebSocket
from waystation.net.websocket.frames import FrameReader
from waystation.net.websocket.upgrade import Upgrade
from waystation.push.connect.broadcasts import Broadcasts
from waystation.push.connect.driver import ConnectDriver
from waystation.push.connect.journal import Journal
from waystation.push.connect.observer import Observer
from waystation.push.connect.session_context import SessionContext
from waystation.push.connect.unacked_saver import UnackedSaver
from waystation.push.model import Notification, Uaid, Update, UserAgent
from waystation.push.settings import Connect
from waystation.push.store import PushStore
from waystation.push.wire.relay import Answer
from waystation.storage.memory.push import MemoryPushStore

UPGRADE = Upgrade(
    path="/", query="", key=b"", subprotocol=False, user_agent="Linux Firefox/1", origin=""
)


class RecordingLoop:
    """Takes no bytes; notes who reads again."""

    def __init__(self) -> None:
        self.resumed_count = 0

    def touched(self, connection: WebSocket) -> None: ...
    def write(self, connection: WebSocket) -> None: ...
    def ending(self, connection: WebSocket) -> None: ...

    def resumed(self, connection: WebSocket) -> None:
        self.resumed_count += 1


class RecordingServer:
    reader = FrameReader()

    def __init__(self, driver: ConnectDriver) -> None:
        self.net = RecordingLoop()
        self.port = Port(cast("NetLoop", self.net), send_bytes_max=0)
        self._driver = driver

    def make_handler(self, connection: WebSocket, upgrade: Upgrade) -> Handler:
        return self._driver.open(connection, upgrade)


class LuckyStore:
    """The memory store; any call of it can be made to fail, to raise or to wait."""

    def __init__(self, clock: ManualClock) -> None:
        self.inner = MemoryPushStore(clock)
        self.failing: set[str] = set()
        self.broken: set[str] = set()
        self.held: dict[str, asyncio.Event] = {}
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        method = getattr(self.inner, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            if name in self.held:
                await self.held[name].wait()
            if name in self.failing:
                raise UnavailableError("down")
            if name in self.broken:
                raise LookupError("our mistake")
            return await method(*args, **kwargs)

        return call

    def hold(self, name: str) -> asyncio.Event:
        return self.held.setdefault(name, asyncio.Event())


class OwnNode:
    """A relay whose only node is the worker itself; others are only noted."""

    def __init__(self) -> None:
        self.driver: ConnectDriver | None = None
        self.displaced: list[tuple[str, Uaid, int]] = []

    async def push(self, node_id: str, uaid: Uaid, notification: Notification | Update) -> Answer:
        raise AssertionError("a connection node does not push")

    async def check_stored(self, node_id: str, uaid: Uaid) -> Answer:
        assert node_id == NODE
        assert self.driver is not None
        return await self.driver.check_stored(uaid)

    async def displace(self, node_id: str, uaid: Uaid, connected_at_ms: int) -> Answer:
        self.displaced.append((node_id, uaid, connected_at_ms))
        return Answer.TAKEN


class Peer:
    """One user agent's end of a connection."""

    def __init__(self, house: "House") -> None:
        self._house = house
        self.server = RecordingServer(house.driver)
        self.connection = WebSocket(self.server, UPGRADE)
        self.connection.flags = OPEN
        self.connection.opened()
        self.frames: list[bytes] = []

    def say(self, message: Any) -> None:
        text = message if isinstance(message, bytes) else msgspec.json.encode(message)
        self._house.driver.text(self.connection, text)

    def hello(self, uaid: Uaid | None = UAID, **fields: Any) -> None:
        text = None if uaid is None else simple(uaid)
        self.say({"messageType": "hello", "use_webpush": True, "uaid": text} | fields)

    def register(self, channel_id: bytes = CHANNEL) -> None:
        self.say({"messageType": "register", "channelID": dashed(channel_id)})

    def heard(self) -> list[Any]:
        """Text messages since the last call."""
        frames, self.connection.out, self.connection.out_bytes = self.connection.out or [], None, 0
        new = [bytes(frame) for frame in frames]
        self.frames += new
        return [msgspec.json.decode(_payload(frame)) for frame in new if frame[0] == 0x81]

    @property
    def pings(self) -> int:
        self.heard()
        return sum(frame[0] == 0x89 for frame in self.frames)

    @property
    def ended(self) -> int | None:
        """The code of our Close, once there is one."""
        return self.connection.close_code if self.connection.flags & ENDING else None

    def vanish(self) -> None:
        self.connection.lost()
        self.connection.closed()


def _payload(frame: bytes) -> bytes:
    return frame[{126: 4, 127: 10}.get(frame[1], 2) :]


class House:
    """A worker. `failures` are our own mistakes."""

    def __init__(
        self,
        folder: Path | None = None,
        *,
        observe: Callable[[ManualClock], Observer] = lambda _: Observer(),
        **settings: Any,
    ) -> None:
        self.clock = ManualClock(now_ms=NOW_MS)
        self.store = LuckyStore(self.clock)
        self.relay = OwnNode()
        self.failures: list[BaseException] = []
        self.tasks = Tasks(lambda _, error: self.failures.append(error))
        self.broadcasts = Broadcasts()
        self.journal = (
            None if folder is None else Journal(folder / "0.log", mode="write", bytes_max=1_000)
        )
        store = cast(PushStore, self.store)
        observer = observe(self.clock)
        self.driver = ConnectDriver(
            SessionContext(
                Connect(**settings),
                node_id=NODE,
                broadcasts=self.broadcasts,
                endpoint_for=endpoint_for,
                new_uaid=lambda: Uaid(new_uuid4()),
            ),
            store=store,
            relay=self.relay,
            saver=UnackedSaver(
                store,
                self.relay,
                self.clock,
                concurrency=4,
                observer=observer,
                jitter=lambda: 0.0,
            ),
            journal=self.journal,
            tasks=self.tasks,
            clock=self.clock,
            observer=observer,
        )
        self.relay.driver = self.driver

    async def knows(self, **fields: Any) -> None:
        """A user agent with one subscription that was connected a second ago."""
        await self.store.inner.add_user_agent(
            UserAgent(**({"uaid": UAID, "connected_at_ms": NOW_MS - 1000} | fields))
        )
        await self.store.inner.add_channel(UAID, CHANNEL, channels_max=10)

    async def stored(self, uaid: Uaid = UAID) -> list[Notification]:
        now_ms = self.clock.now_ms()
        return list(await self.store.inner.fetch(uaid, now_ms=now_ms, after=None, limit=100))

    def connect(self) -> Peer:
        return Peer(self)

    def greeted(self, **fields: Any) -> Peer:
        self.clock.advance(0.01)  # a claim must be newer than the one before it
        peer = self.connect()
        peer.hello(**fields)
        assert peer.heard()[0]["status"] == 200
        return peer

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.driver._timers.fire()

    async def settle(self) -> None:
        """Let everything that is under way and not held come to its end."""
        for _ in range(30):
            await asyncio.sleep(0)

    async def close(self) -> None:
        self.driver.close()
        await self.tasks.close()
        if self.journal is not None:
            self.journal.close()
