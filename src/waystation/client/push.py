"""A user agent: subscribes, receives, decrypts and acks, and comes back when the line breaks.

    async with UserAgent("ws://127.0.0.1:8080", state_file=StateFile(path)) as agent:
        subscription = await agent.subscribe()
        async for received in agent:
            print(received.text)

Rule 1: a notification is acked when the caller gets it (`auto_ack`) or when the caller says so.
Rule 2: at most `inbox_max` notifications wait for the caller; then we stop reading, and the node
        keeps the rest.
Rule 3: after a broken connection we try again after a random part of a time that doubles up to
        `backoff_max_s`; an answered hello sets it back.
Rule 4: when the node has been silent for `ping_interval_s` we ask; no answer within
        `request_timeout_s` is a broken connection. Nodes hang up on pings that come too often.
"""

import asyncio
import random
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from types import TracebackType
from typing import Self, assert_never
from uuid import uuid4

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.typing import Subprotocol

from waystation.base.errors import RejectedError, UnavailableError

from .encryption import AgentKeys
from .push_session import (
    ACK_DELIVERED,
    PING,
    Broadcasts,
    Deliver,
    Effect,
    PushSession,
    PushSessionError,
    Received,
    Registered,
    Say,
    Unregistered,
    Welcome,
)
from .subscriptions import AgentState, StateFile, Subscription

FRAME_BYTES_MAX = 1_048_576
CLOSE_GOING_AWAY = 1001
CLOSE_STAY_AWAY = 4774  # Autopush: too many pings; come back late


class SubscribeRefusedError(RejectedError):
    """The node answered register or unregister with a status other than 200."""

    label = "subscribe_refused"

    def __init__(self, status: int) -> None:
        super().__init__(f"the node answered with status {status}")
        self.status = status


class NotConnectedError(UnavailableError):
    """The connection broke before the answer came, or does not come up."""

    label = "not_connected"


class UserAgent:
    def __init__(
        self,
        url: str,
        *,
        state: AgentState | None = None,
        state_file: StateFile | None = None,
        auto_ack: bool = True,
        on_lost: Callable[[Sequence[Subscription]], Awaitable[None]] | None = None,
        on_broadcasts: Callable[[dict[str, str]], None] | None = None,
        ping_interval_s: float = 300.0,
        request_timeout_s: float = 10.0,
        backoff_base_s: float = 0.5,
        backoff_max_s: float = 300.0,
        inbox_max: int = 256,
        tls: ssl.SSLContext | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """`on_lost` is awaited beside the conversation when the node has forgotten us, with the
        subscriptions that are gone; it is the place to subscribe again and tell the app server."""
        assert 0 < backoff_base_s <= backoff_max_s
        self.url = url
        self._state_file = state_file
        self._state = state or (state_file.load() if state_file else AgentState())
        self._session = PushSession(self._state)
        self._auto_ack = auto_ack
        self._on_lost = on_lost
        self._on_broadcasts = on_broadcasts
        self._ping_interval_s = ping_interval_s
        self._request_timeout_s = request_timeout_s
        self._backoff_base_s = backoff_base_s
        self._backoff_max_s = backoff_max_s
        secure = url.startswith("wss:")
        self._tls = (tls or ssl.create_default_context()) if secure else None
        self._rng = rng or random.Random()
        self._inbox: asyncio.Queue[Received] = asyncio.Queue(inbox_max)
        self._replies: dict[tuple[str, str], asyncio.Future[Registered | Unregistered]] = {}
        self._socket: ClientConnection | None = None
        self._welcomed = asyncio.Event()
        self._runner: asyncio.Task[None] | None = None
        self._closing = False
        self._callbacks: set[asyncio.Task[None]] = set()
        self.hellos = 0  # answered ones; more than one means that we reconnected
        self.last_problem = ""  # why the last connection ended

    # a user agent's life

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    def start(self) -> None:
        """Begins to connect; `connected()` waits until that is done."""
        assert self._runner is None, "a user agent is started once"
        self._runner = asyncio.get_running_loop().create_task(self._run(), name="user-agent")

    async def close(self) -> None:
        """Takes leave of the node properly; unacked notifications stay with it."""
        self._closing = True
        await self.drop_connection(CLOSE_GOING_AWAY)
        tasks = [task for task in (self._runner, *self._callbacks) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def connected(self, timeout_s: float | None = None) -> str:
        """The uaid, once a hello is answered."""
        assert self._runner is not None, "not started"
        welcomed = asyncio.ensure_future(self._welcomed.wait())
        try:
            await asyncio.wait(
                {welcomed, self._runner}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            welcomed.cancel()
        if self._runner.done() and not self._runner.cancelled():
            self._runner.result()  # a programming error ends the runner: show it
        if not self._welcomed.is_set():
            raise NotConnectedError(f"{self.url}: {self.last_problem or 'no answer'}")
        return self._state.uaid

    # what a caller asks for

    @property
    def uaid(self) -> str:
        return self._state.uaid

    @property
    def state(self) -> AgentState:
        """Who we are; give it to the next `UserAgent` to go on where this one ended."""
        return self._state

    @property
    def subscriptions(self) -> dict[str, Subscription]:
        return dict(self._state.subscriptions)

    @property
    def broadcasts(self) -> dict[str, str]:
        return dict(self._session.broadcasts)

    async def subscribe(
        self, app_server_key: str = "", *, channel_id: str = "", keys: AgentKeys | None = None
    ) -> Subscription:
        """With `app_server_key` (VAPID, base64url) only that app server can use the endpoint."""
        await self.connected(self._request_timeout_s)
        channel_id = channel_id or str(uuid4())
        frame = self._session.register(channel_id, keys or AgentKeys.generate(), app_server_key)
        await self._ask(("register", channel_id), frame)
        return self._state.subscriptions[channel_id]

    async def unsubscribe(self, channel_id: str) -> None:
        await self.connected(self._request_timeout_s)
        await self._ask(("unregister", channel_id), self._session.unregister(channel_id))

    async def subscribe_broadcasts(self, versions: dict[str, str]) -> None:
        """There is no answer unless the node knows another version."""
        await self.connected(self._request_timeout_s)
        await self._say(self._session.subscribe_broadcasts(versions))

    async def receive(self) -> Received:
        received = await self._inbox.get()
        if self._auto_ack and not received.problem:
            await self.ack(received)
        return received

    async def ack(self, received: Received, code: int = ACK_DELIVERED) -> None:
        """If the line is broken, the notification comes again and is acked then."""
        await self._say(self._session.ack(received, code))

    async def nack(self, received: Received, code: int = 301) -> None:
        """Acked before, but the work it asked for failed: only statistics for the node."""
        await self._say(self._session.nack(received, code))

    async def __aiter__(self) -> AsyncIterator[Received]:
        while True:
            yield await self.receive()

    async def drop_connection(self, code: int = 1000) -> None:
        """Hangs up; the user agent reconnects by itself."""
        if self._socket is not None:
            await self._socket.close(code)

    # the shell around the conversation

    async def _run(self) -> None:
        failures = 0
        while not self._closing:
            hellos = self.hellos
            stay_away = False
            try:
                async with connect(
                    self.url,
                    subprotocols=[Subprotocol("push-notification")],
                    compression=None,
                    ping_interval=None,  # an early WebSocket ping ends an Autopush connection
                    open_timeout=self._request_timeout_s,
                    close_timeout=1,
                    max_size=FRAME_BYTES_MAX,
                    proxy=None,
                    ssl=self._tls,
                ) as socket:
                    await self._converse(socket)
            except (OSError, TimeoutError, WebSocketException, PushSessionError) as exc:
                self.last_problem = str(exc) or type(exc).__name__
                stay_away = isinstance(exc, ConnectionClosed) and (
                    exc.rcvd is not None and exc.rcvd.code == CLOSE_STAY_AWAY
                )
            finally:
                self._hung_up()
            failures = 0 if self.hellos > hellos else failures + 1
            await asyncio.sleep(self._backoff_max_s if stay_away else self._backoff_s(failures))

    def _backoff_s(self, failures: int) -> float:
        ceiling_s = min(self._backoff_base_s * 2.0 ** min(failures, 30), self._backoff_max_s)
        return self._rng.uniform(ceiling_s / 2, ceiling_s)

    async def _converse(self, socket: ClientConnection) -> None:
        self._socket = socket
        await socket.send(self._session.connected())
        while True:
            wait_s = self._ping_interval_s if self._session.open else self._request_timeout_s
            try:
                # Not wait_for: before Python 3.12 it may swallow the cancellation of `close`.
                async with asyncio.timeout(wait_s):
                    frame = await socket.recv()
            except TimeoutError:
                if not self._session.open:
                    raise
                await socket.send(PING)
                async with asyncio.timeout(self._request_timeout_s):
                    frame = await socket.recv()
            for effect in self._session.frame(frame):
                await self._perform(effect, socket)

    async def _perform(self, effect: Effect, socket: ClientConnection) -> None:
        match effect:
            case Say(frame):
                await socket.send(frame)
            case Welcome():
                self.hellos += 1
                self._save()
                self._welcomed.set()
                self._tell_lost(effect.lost)
                self._tell_broadcasts(effect.broadcasts)
            case Registered() | Unregistered():
                self._save()
                kind = "register" if isinstance(effect, Registered) else "unregister"
                reply = self._replies.pop((kind, effect.channel_id), None)
                if reply is not None and not reply.done():
                    reply.set_result(effect)
            case Deliver(received):
                await self._inbox.put(received)
            case Broadcasts():
                self._tell_broadcasts(effect.changed)
            case _:
                assert_never(effect)

    def _hung_up(self) -> None:
        self._socket = None
        self._welcomed.clear()
        self._session.disconnected()
        replies, self._replies = self._replies, {}
        for reply in replies.values():
            if not reply.done():
                reply.set_exception(NotConnectedError("the connection broke before the answer"))

    async def _ask(self, key: tuple[str, str], frame: str) -> None:
        reply: asyncio.Future[Registered | Unregistered]
        reply = asyncio.get_running_loop().create_future()
        self._replies[key] = reply
        await self._say(frame)
        try:
            async with asyncio.timeout(self._request_timeout_s):
                answer = await reply
        except TimeoutError as exc:
            self._replies.pop(key, None)
            raise NotConnectedError(f"no answer within {self._request_timeout_s:g} s") from exc
        if answer.status != 200:
            raise SubscribeRefusedError(answer.status)

    async def _say(self, frame: str) -> None:
        """A frame that finds no connection is dropped: what matters is asked for again."""
        if self._socket is None:
            return
        try:
            await self._socket.send(frame)
        except ConnectionClosed:
            return

    def _tell_lost(self, lost: tuple[Subscription, ...]) -> None:
        if lost and self._on_lost is not None:
            task = asyncio.ensure_future(self._on_lost(lost))
            self._callbacks.add(task)
            task.add_done_callback(self._callbacks.discard)

    def _tell_broadcasts(self, changed: dict[str, str]) -> None:
        if changed and self._on_broadcasts is not None:
            self._on_broadcasts(changed)

    def _save(self) -> None:
        if self._state_file is not None:
            self._state_file.save(self._state)
