"""Party client over gRPC, for applications.

    async with PartyMember("127.0.0.1:50051", party_id=7, client_id=42) as member:
        async for event in member:
            print(event)

At most `inbox_max` events wait for the application. One more replaces them by a `Resynced` with the
current participants. The token is fetched when a stream opens and when the broker asks for a newer
one.
"""

import asyncio
import random
import secrets
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, Self, assert_never, cast

import grpc

from waystation.presence.wire.party_presence_pb2 import ClientMessage
from waystation.presence.wire.presence_cluster_pb2 import ListNodesRequest, NodeList

from .effects import Close, Effect, FetchToken, FindNodes, Finish, Notify, Open, Send
from .model import (
    Event,
    Participant,
    PartyRefusedError,
    PartyUnreachableError,
    Resynced,
    SessionOptions,
    State,
    StateChanged,
)
from .session import Session

METHOD = "/ClientMessagingEndpoint/beginStream"
LIST_NODES = "/partypresence.cluster.v1.NodeDirectory/ListNodes"
INBOX_MAX = 10_000
OUTBOX_MAX = 1000  # messages that the stream has not taken yet
NODES_WANTED = 8
_CALL_OPTIONS = (
    # Each member of a process has connections of its own, as on several devices.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),  # the session resumes by itself
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),
)

Token = Callable[
    [], Awaitable[str] | str
]  # after an OSError it is called again for the next stream


class PartyMember:
    def __init__(
        self,
        *endpoints: str,
        party_id: int,
        client_id: int,
        session_id: int | None = None,
        token: Token | None = None,
        credentials: grpc.ChannelCredentials | None = None,
        on_event: Callable[[Event], None] | None = None,
        chance: random.Random | None = None,
        inbox_max: int = INBOX_MAX,
        **options: Any,
    ) -> None:
        """`endpoints` are HOST:PORT; other keywords are fields of `SessionOptions`. With
        `on_event`, events go there and not to the iterator."""
        self.options = SessionOptions(
            party_id=party_id,
            client_id=client_id,
            session_id=session_id or secrets.randbits(63) | 1,
            **options,
        )
        self._endpoints = endpoints
        self._token = token
        self._credentials = credentials
        self._on_event = on_event
        self._chance = chance or random.Random(secrets.randbits(64))
        self._inbox_max = inbox_max
        self._inbox: deque[Event] = deque()
        self._news = asyncio.Event()
        self._session: Session | None = None
        self._outboxes: dict[int, asyncio.Queue[bytes | None]] = {}
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._tasks: dict[asyncio.Task[None], int] = {}  # -> stream, 0 for others
        self._timer: asyncio.TimerHandle | None = None
        self._outcome: asyncio.Future[Finish] | None = None
        self._joined = asyncio.Event()
        self._closed = False
        self.last_problem = ""  # why the last stream ended

    # --- life ------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.leave()
        await self.close()

    def start(self) -> None:
        assert self._session is None, "a member starts once"
        loop = asyncio.get_running_loop()
        self._outcome = loop.create_future()
        self._session = Session(self.options, self._endpoints, chance=self._chance, now=loop.time())
        self._wake()

    async def joined(self, timeout_s: float = 10.0) -> None:
        """Waits until the session has joined.

        Raises `PartyRefusedError` if the broker refuses it, `PartyUnreachableError` if no broker
        answers within `timeout_s`."""
        assert self._outcome is not None
        waiting = asyncio.ensure_future(self._joined.wait())
        try:
            await asyncio.wait(
                {waiting, self._outcome},
                timeout=timeout_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            waiting.cancel()
        if self._outcome.done():
            self._raise_if_refused()
        if not self._joined.is_set():
            where = ", ".join(self._endpoints)
            why = f" ({self.last_problem})" if self.last_problem else ""
            raise PartyUnreachableError(f"no broker at {where} answered in {timeout_s:g} s{why}")

    async def leave(self) -> None:
        """Sends LEAVE and waits for the answer, at most `leave_timeout_s`."""
        if self._session is not None and self._outcome is not None and not self._outcome.done():
            self._perform(self._session.leave(self._now()))
            await self._outcome

    async def close(self) -> None:
        """Ends without LEAVE: the session stays until it is resumed or times out."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        channels = list(self._channels.values())
        self._channels.clear()
        for channel in channels:
            await channel.close()
        if self._outcome is not None and not self._outcome.done():
            self._outcome.set_result(Finish(0, "closed"))
        self._news.set()

    # --- for the application ---------------------------------------------------------------------

    @property
    def state(self) -> State:
        return State.IDLE if self._session is None else self._session.state

    @property
    def participants(self) -> tuple[Participant, ...]:
        """The other participants, as of the last message."""
        return () if self._session is None else self._session.view.participants

    @property
    def resumes(self) -> int:
        """How often the session was resumed on another stream."""
        return 0 if self._session is None else self._session.resumes

    async def __aiter__(self) -> AsyncIterator[Event]:
        """Ends when the session ends; raises `PartyRefusedError` if the broker ended it."""
        assert self._outcome is not None
        while True:
            while self._inbox:
                yield self._inbox.popleft()
            if self._outcome.done():
                self._raise_if_refused()
                return
            self._news.clear()
            await self._news.wait()

    def signal(self, payload: bytes) -> None:
        """Sends a payload to every other session of the party, if the broker allows signals."""
        assert self._session is not None
        self._perform(self._session.signal(payload, self._now()))

    async def renew_token(self) -> None:
        """Fetches a token and sends it to the broker without waiting to be asked."""
        await self._fetch_token()

    def drop_connections(self) -> None:
        """Cancels every stream without LEAVE, as a lost network would."""
        for stream in set(self._tasks.values()) - {0}:
            self._drop(stream)

    def _drop(self, stream: int) -> None:
        for task, number in list(self._tasks.items()):
            if number == stream:
                task.cancel()

    def _raise_if_refused(self) -> None:
        assert self._outcome is not None
        outcome = self._outcome.result()
        if outcome.code:
            raise PartyRefusedError(f"the broker refused: {outcome.reason}", outcome.code)

    # --- the core and its effects ----------------------------------------------------------------

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _wake(self) -> None:
        assert self._session is not None
        self._timer = None
        self._perform(self._session.wake(self._now()))

    def _perform(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(stream, message):
                    outbox = self._outboxes.get(stream)
                    if outbox is not None and outbox.full():
                        self._drop(stream)  # a broker that does not read is treated as lost
                    elif outbox is not None:
                        outbox.put_nowait(message.SerializeToString())
                case Notify(event):
                    self._emit(event)
                case Open(stream, endpoint):
                    self._outboxes[stream] = asyncio.Queue(OUTBOX_MAX)
                    self._spawn(self._run_stream(stream, endpoint), stream)
                case Close(stream):
                    self._close_stream(stream)
                case FetchToken():
                    self._spawn(self._fetch_token(), 0)
                case FindNodes():
                    self._spawn(self._find_nodes(), 0)
                case Finish():
                    self._finish(effect)
                case _:
                    assert_never(effect)
        self._arm()

    def _arm(self) -> None:
        assert self._session is not None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        wake_at = self._session.wake_at()
        if wake_at is not None and not self._closed:
            self._timer = asyncio.get_running_loop().call_at(wake_at, self._wake)

    def _emit(self, event: Event) -> None:
        if isinstance(event, StateChanged) and event.state in {State.SINGLE, State.PAIRED}:
            self._joined.set()
        if self._on_event is not None:
            self._on_event(event)
            return
        if len(self._inbox) >= self._inbox_max:
            assert self._session is not None
            self._inbox.clear()
            event = Resynced(self.participants, self._session.view.seq)
        self._inbox.append(event)
        self._news.set()

    def _finish(self, outcome: Finish) -> None:
        assert self._outcome is not None
        if not self._outcome.done():
            self._outcome.set_result(outcome)
        self._news.set()

    # --- streams ---------------------------------------------------------------------------------

    def _spawn(self, coro: Any, stream: int) -> None:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(coro)
        self._tasks[task] = stream
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    def _close_stream(self, stream: int) -> None:
        """Closes the stream after its waiting messages were written."""
        outbox = self._outboxes.pop(stream, None)
        if outbox is None:
            return
        if outbox.full():
            self._drop(stream)
        else:
            outbox.put_nowait(None)

    async def _run_stream(self, stream: int, endpoint: str) -> None:
        """Runs one stream and reports its end to the session."""
        status = grpc.StatusCode.UNAVAILABLE
        outbox = self._outboxes[stream]
        try:
            status = await self._exchange(stream, endpoint, outbox)
        except asyncio.CancelledError:
            if stream not in self._outboxes or not self._alive:
                raise
        except grpc.aio.AioRpcError as exc:
            status = exc.code()
            self.last_problem = exc.details() or status.name
        except OSError as exc:  # from the token source: retried like a broken stream
            self.last_problem = str(exc)
        finally:
            self._outboxes.pop(stream, None)
        if self._session is not None and self._alive:
            self._perform(self._session.ended(stream, cast(Any, status).value[0], self._now()))

    @property
    def _alive(self) -> bool:
        return not self._closed and self._outcome is not None and not self._outcome.done()

    async def _exchange(
        self, stream: int, endpoint: str, outbox: asyncio.Queue[bytes | None]
    ) -> grpc.StatusCode:
        channel = self._channel(endpoint)
        metadata = await self._metadata()
        call = cast(Any, channel.stream_stream(METHOD))(metadata=metadata)
        writer = asyncio.get_running_loop().create_task(_write(call, outbox))
        try:
            async for data in call:
                assert self._session is not None
                message = ClientMessage.FromString(data)
                self._perform(self._session.received(stream, message, self._now()))
            return await call.code()
        finally:
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)
            call.cancel()

    def _channel(self, endpoint: str) -> grpc.aio.Channel:
        channel = self._channels.get(endpoint)
        if channel is None:
            if self._credentials is None:
                channel = grpc.aio.insecure_channel(endpoint, _CALL_OPTIONS)
            else:
                channel = grpc.aio.secure_channel(endpoint, self._credentials, _CALL_OPTIONS)
            self._channels[endpoint] = channel
        return channel

    async def _metadata(self) -> tuple[tuple[str, str], ...]:
        token = await self._current_token()
        return (("authorization", f"Bearer {token}"),) if token else ()

    async def _current_token(self) -> str:
        if self._token is None:
            return ""
        token = self._token()
        return token if isinstance(token, str) else await token

    async def _fetch_token(self) -> None:
        try:
            token = await self._current_token()
        except OSError as exc:  # the next stream fetches a token again
            self.last_problem = str(exc)
            return
        if token and self._session is not None:
            self._perform(self._session.renewed(token, self._now()))

    async def _find_nodes(self) -> None:
        """Asks the node directory of the first node that answers."""
        request = ListNodesRequest(party_id=self.options.party_id, limit=NODES_WANTED)
        try:
            metadata = await self._metadata()
        except OSError as exc:
            self.last_problem = str(exc)
            return
        for channel in list(self._channels.values()):
            call: Any = channel.unary_unary(
                LIST_NODES,
                request_serializer=ListNodesRequest.SerializeToString,
                response_deserializer=NodeList.FromString,
            )
            try:
                answer = await call(request, metadata=metadata, timeout=5.0)
            except grpc.aio.AioRpcError:
                continue
            found = [node.client_endpoint for node in answer.nodes if node.client_endpoint]
            if self._session is not None:
                self._perform(self._session.nodes_found(found, self._now()))
            return


async def _write(call: Any, outbox: asyncio.Queue[bytes | None]) -> None:
    """Writes until the stream is closed or fails; the reader reports why it failed."""
    try:
        while (data := await outbox.get()) is not None:
            await call.write(data)
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        return
    call.cancel()
