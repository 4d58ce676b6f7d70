"""gRPC methods written as coroutines: for what is asked seldom, beside a port's own handler.

A method takes its request, or an iterator of them, and the `Caller`; it returns its reply, or
yields several. It raises `GrpcError` to end the call with another status than OK.

Rule 1: a method with one request starts when the client has said all it will, one with several at
        once.
Rule 2: reading pauses while `WAITING_MAX` requests wait, and a method waits while its stream is not
        writable.
Rule 3: a method whose client has gone is cancelled.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final, Protocol, cast

import msgspec

from waystation.base.tasks import Tasks
from waystation.net.http2.port import Gone, GrpcStatus, Stream, StreamHandler

WAITING_MAX: Final = 64


class GrpcError(Exception):
    """Ends a call with this status."""

    def __init__(self, status: GrpcStatus, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


class Caller(Protocol):
    """What a method may know of its client."""

    @property
    def peer(self) -> str: ...

    @property
    def authorization(self) -> str | None: ...

    @property
    def certified(self) -> bool:
        """Whether TLS has verified a certificate of the client's."""
        ...


class Method(msgspec.Struct, frozen=True):
    """`run(request, caller)`; with `many_in` it is given an iterator of requests, with `many_out`
    it is an iterator of replies."""

    run: Callable[[Any, Any], Any]
    decode: Callable[[bytes], Any]
    encode: Callable[[Any], bytes]
    many_in: bool = False
    many_out: bool = False


class Service(msgspec.Struct, frozen=True):
    name: str
    methods: Mapping[str, Method]


def service_routes(
    services: Sequence[Service], tasks: Tasks, on_failure: Callable[[Exception], None]
) -> dict[str, StreamHandler]:
    """The paths of all methods. `on_failure` hears what a method raised by mistake."""
    return {
        f"/{service.name}/{name}": _Handler(method, tasks, on_failure)
        for service in services
        for name, method in service.methods.items()
    }


class _Handler:
    """Of one method: a `StreamHandler`."""

    def __init__(
        self, method: Method, tasks: Tasks, on_failure: Callable[[Exception], None]
    ) -> None:
        self._method = method
        self._tasks = tasks
        self._on_failure = on_failure

    def opened(self, stream: Stream) -> None:
        stream.holder = _Run(self._method, stream, self._on_failure)
        if self._method.many_in:
            stream.holder.start(self._tasks)

    def message(self, stream: Stream, data: bytes) -> None:
        stream.holder.take(data)

    def half_closed(self, stream: Stream) -> None:
        run: _Run = stream.holder
        run.complete = True
        run.changed.set()
        if not self._method.many_in:
            run.start(self._tasks)

    def closed(self, stream: Stream, why: Gone) -> None:
        run: _Run = stream.holder
        if run.task is not None:
            run.task.cancel()

    def unblocked(self, stream: Stream) -> None:
        stream.holder.changed.set()


class _Run:
    """One call of a method."""

    def __init__(
        self, method: Method, stream: Stream, on_failure: Callable[[Exception], None]
    ) -> None:
        self._method = method
        self._stream = stream
        self._on_failure = on_failure
        self._waiting: deque[bytes] = deque()
        self.complete = False  # the client has said all it will
        self.changed = asyncio.Event()  # something has come, or the stream is writable
        self.task: asyncio.Task[None] | None = None

    def start(self, tasks: Tasks) -> None:
        self.task = tasks.spawn("gRPC method", self._answer())

    def take(self, data: bytes) -> None:
        self._waiting.append(data)
        if len(self._waiting) == WAITING_MAX:
            self._stream.pause_reading()
        self.changed.set()

    async def _answer(self) -> None:
        status, detail = GrpcStatus.OK, ""
        try:
            await self._perform()
        except GrpcError as exc:
            status, detail = exc.status, exc.detail
        except Exception as exc:  # a mistake of ours, which ends this call and no more
            self._on_failure(exc)
            status, detail = GrpcStatus.INTERNAL, "INTERNAL_ERROR"
        self._stream.finish(status, detail)

    async def _perform(self) -> None:
        method, caller = self._method, cast("Caller", self._stream)
        if method.many_in:
            request = self._requests()
        elif len(self._waiting) == 1:
            request = self._decoded(self._waiting.popleft())
        else:
            raise GrpcError(GrpcStatus.UNIMPLEMENTED, "this method takes one request")
        if method.many_out:
            async with aclosing(method.run(request, caller)) as replies:
                async for reply in replies:
                    await self._say(reply)
        else:
            await self._say(await method.run(request, caller))

    async def _requests(self) -> AsyncIterator[Any]:
        waiting = self._waiting
        while True:
            while waiting:
                data = waiting.popleft()
                if len(waiting) == WAITING_MAX - 1:
                    self._stream.resume_reading()
                yield self._decoded(data)
            if self.complete:
                return
            await self._until_changed()

    def _decoded(self, data: bytes) -> Any:
        try:
            return self._method.decode(data)
        except Exception as exc:  # whatever the decoder of the messages raises
            raise GrpcError(GrpcStatus.INVALID_ARGUMENT, "the request is malformed") from exc

    async def _say(self, reply: Any) -> None:
        while not self._stream.writable:
            await self._until_changed()
        self._stream.send(self._method.encode(reply))

    async def _until_changed(self) -> None:
        self.changed.clear()
        await self.changed.wait()
