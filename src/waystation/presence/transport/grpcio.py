"""Streams over grpcio (grpc.aio): the reference transport, always there.

Messages pass as bytes: the handler is generic and has no serialisers. For each call there are two
tasks: the call's own one writes what the broker sent and ends the call, the other one reads.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import grpc
import msgspec
from grpc import aio

from waystation.presence.settings import Presence

from .port import (
    METADATA_BYTES_MAX,
    SEND_HIGH_BYTES,
    SEND_LOW_BYTES,
    Gone,
    GrpcStatus,
    StreamHandler,
)

_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}
_IDENTITY_ONLY: Final = 1  # bit 0: no compression; anything else is refused as UNIMPLEMENTED
_PING_STRIKES: Final = 2

Context = aio.ServicerContext[bytes, bytes]


class ServerTls(msgspec.Struct, frozen=True, kw_only=True):
    """Files of one port's TLS; with `client_ca`, clients must have a certificate of it."""

    cert: str
    key: str
    client_ca: str = ""


class GrpcioStream:
    __slots__ = (
        "_blocked",
        "_context",
        "_ending",
        "_handler",
        "_out",
        "_paused",
        "_unsent",
        "_wake",
        "authorization",
        "holder",
        "over",
    )

    def __init__(self, context: Context, handler: StreamHandler) -> None:
        self.holder: Any = None
        self._context = context
        self._handler = handler
        self._out: deque[bytes] = deque()
        self._unsent = 0
        self._blocked = False
        self._ending: tuple[GrpcStatus, str] | None = None
        self._wake: asyncio.Future[None] | None = None
        self._paused: asyncio.Event | None = None  # set while reading goes on
        self.over = False
        self.authorization: str | None = None
        for name, value in context.invocation_metadata() or ():
            if name == "authorization" and isinstance(value, str):
                self.authorization = value

    @property
    def peer(self) -> str:
        return self._context.peer()

    @property
    def writable(self) -> bool:
        return not self._blocked

    def send(self, message: bytes) -> None:
        self._out.append(message)
        self._unsent += len(message)
        if self._unsent >= SEND_HIGH_BYTES:
            self._blocked = True
        self._wake_writer()

    def finish(self, status: GrpcStatus, detail: str = "", *, discard_unsent: bool = False) -> None:
        self._ending = (status, detail)
        if discard_unsent:
            self._out.clear()
        self._wake_writer()

    def pause_reading(self) -> None:
        if self._paused is None:
            self._paused = asyncio.Event()
        self._paused.clear()

    def resume_reading(self) -> None:
        if self._paused is not None:
            self._paused.set()

    def _wake_writer(self) -> None:
        wake = self._wake
        if wake is not None and not wake.done():
            wake.set_result(None)

    async def write_on(self) -> tuple[GrpcStatus, str]:
        """Writes until the broker finishes the call."""
        loop, write, out = asyncio.get_running_loop(), self._context.write, self._out
        while True:
            while out:
                message = out.popleft()
                await write(message)
                self._unsent -= len(message)
                if self._blocked and self._unsent <= SEND_LOW_BYTES:
                    self._blocked = False
                    if self._ending is None:
                        self._handler.unblocked(self)
            if self._ending is not None:
                return self._ending
            self._wake = loop.create_future()
            await self._wake

    async def read_on(self) -> None:
        read, handler = self._context.read, self._handler
        while True:
            message: Any = await read()
            if self._paused is not None and not self._paused.is_set():
                await self._paused.wait()
            if self._ending is not None:
                return
            if not isinstance(message, bytes):  # grpc.aio.EOF
                handler.half_closed(self)
                return
            handler.message(self, message)


class _Streams(grpc.GenericRpcHandler):
    def __init__(self, paths: frozenset[str], serve: Callable[..., Any]) -> None:
        self._paths = paths
        self._method: Any = grpc.stream_stream_rpc_method_handler(serve)

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> "grpc.RpcMethodHandler[Any, Any] | None":
        return self._method if handler_call_details.method in self._paths else None


class GrpcioTransport:
    def __init__(
        self,
        handler: StreamHandler,
        settings: Presence,
        *,
        host: str,
        port: int,
        paths: frozenset[str],
        tls: ServerTls | None = None,
        services: Sequence[Callable[[aio.Server], None]] = (),
        reuse_port: bool = True,
    ) -> None:
        """`services` add what else the port serves: health, reflection, directory."""
        self._handler = handler
        self._address = f"[{host}]" if ":" in host else host
        self._wanted_port = port
        self._tls = tls
        self._credentials = _Certificates(tls) if tls is not None else None
        self._server = aio.server(options=_options(settings, reuse_port=reuse_port))
        self._server.add_generic_rpc_handlers((_Streams(paths, self._serve),))
        for add in services:
            add(self._server)
        self._port = 0
        self._open = 0

    @property
    def port(self) -> int:
        return self._port

    @property
    def connections(self) -> int:
        """grpcio does not tell; streams are what it has."""
        return self._open

    async def start(self) -> None:
        address = f"{self._address}:{self._wanted_port}"
        try:
            if self._credentials is None:
                self._port = self._server.add_insecure_port(address)
            else:
                self._port = self._server.add_secure_port(address, self._credentials.make())
        except RuntimeError as exc:
            raise OSError(f"cannot listen on {address}: {exc}") from exc
        await self._server.start()

    def stop_accepting(self) -> None:
        """Connections are closed with `close`; until then the broker refuses what is new."""

    async def close(self, grace_s: float = 0.0) -> None:
        await self._server.stop(grace_s)

    def reload_tls(self) -> None:
        if self._credentials is not None:
            self._credentials.reload()

    async def _serve(self, _requests: object, context: Context) -> None:
        handler = self._handler
        stream = GrpcioStream(context, handler)
        self._open += 1
        reader: asyncio.Task[None] | None = None
        try:
            handler.opened(stream)
            reader = asyncio.create_task(stream.read_on())
            status, detail = await stream.write_on()
            stream.over = True
            if status is not GrpcStatus.OK:
                context.set_code(_CODES[status])
                context.set_details(detail)
        finally:
            self._open -= 1
            if reader is not None:
                reader.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await reader
            if not stream.over:
                stream.over = True
                handler.closed(stream, Gone.TRANSPORT)


class ServicePort:
    """A port without streams: what nodes and operators ask, and what a transport of our own leaves
    to grpcio."""

    def __init__(
        self,
        services: Sequence[Callable[[aio.Server], None]],
        *,
        host: str,
        port: int,
        tls: ServerTls | None = None,
        reuse_port: bool = True,
    ) -> None:
        """Bound at once. Raises `OSError`."""
        options = [
            ("grpc.so_reuseport", int(reuse_port)),
            ("grpc.max_metadata_size", METADATA_BYTES_MAX),
            ("grpc.absolute_max_metadata_size", METADATA_BYTES_MAX),
        ]
        self._server = aio.server(options=options)
        for add in services:
            add(self._server)
        self._credentials = _Certificates(tls) if tls is not None else None
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if self._credentials is None:
                self.port = self._server.add_insecure_port(address)
            else:
                self.port = self._server.add_secure_port(address, self._credentials.make())
        except RuntimeError as exc:
            raise OSError(f"cannot listen on {address}: {exc}") from exc

    async def start(self) -> None:
        await self._server.start()

    def reload_tls(self) -> None:
        if self._credentials is not None:
            self._credentials.reload()

    async def close(self, grace_s: float = 0.0) -> None:
        await self._server.stop(grace_s)


class _Certificates:
    """grpcio asks for the certificate at every handshake: a new one serves from then on."""

    def __init__(self, tls: ServerTls) -> None:
        self._tls = tls
        self._current = self._read()
        self._changed = False

    def make(self) -> grpc.ServerCredentials:
        return grpc.dynamic_ssl_server_credentials(
            self._current,
            self._fetch,  # pyright: ignore[reportArgumentType] None means: as before
            require_client_authentication=bool(self._tls.client_ca),
        )

    def reload(self) -> None:
        """Raises `OSError`, and then nothing changes."""
        self._current = self._read()
        self._changed = True

    def _read(self) -> grpc.ServerCertificateConfiguration:
        tls = self._tls
        roots = Path(tls.client_ca).read_bytes() if tls.client_ca else None
        pair = (Path(tls.key).read_bytes(), Path(tls.cert).read_bytes())
        return grpc.ssl_server_certificate_configuration([pair], root_certificates=roots)

    def _fetch(self) -> grpc.ServerCertificateConfiguration | None:
        changed, self._changed = self._changed, False
        return self._current if changed else None


def _options(settings: Presence, *, reuse_port: bool) -> list[tuple[str, int]]:
    keepalive_ms = round(settings.keepalive_s * 1000)
    return [
        ("grpc.so_reuseport", int(reuse_port)),
        ("grpc.max_receive_message_length", settings.max_message_bytes),
        ("grpc.max_metadata_size", METADATA_BYTES_MAX),
        ("grpc.absolute_max_metadata_size", METADATA_BYTES_MAX),
        ("grpc.max_concurrent_streams", settings.connection_streams_max),
        ("grpc.compression_enabled_algorithms_bitset", _IDENTITY_ONLY),
        ("grpc.keepalive_time_ms", keepalive_ms),
        ("grpc.keepalive_timeout_ms", round(settings.keepalive_timeout_s * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
        ("grpc.http2.max_ping_strikes", _PING_STRIKES),
    ]
