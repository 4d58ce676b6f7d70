"""One connection to a server: TLS, the hellos, commands out, answers and events in.

Rule 1: commands of one loop turn are sent together, in as few blocks as possible.
Rule 2: a command without an answer within `request_timeout_s` ends the connection: answers come in
        order, so later ones would not come either.
Rule 3: a caller whose answer is lost learns whether the command may have reached the server
        (`OutcomeUnknownError`) or cannot have (`NotConnectedError`).
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol

import msgspec

from waystation.base.errors import UnavailableError
from waystation.base.tasks import TurnBatch

from .address import ServerAddress
from .answers import Answer
from .block import BLOCK_BYTES, plain_block
from .commands import VERSION_MAX, VERSION_MIN, Command
from .encoding import BadBytesError, unpad
from .exchange import Exchange, Said
from .hello import (
    SESSION_ID_BYTES,
    IdentityError,
    Session,
    VersionError,
    block_ends,
    check_server,
    common_version,
    decode_server_hello,
    encode_client_hello,
)
from .keys import PrivateKey
from .service import VERSION_MIN as SERVICES_SINCE
from .service import ServiceCard
from .tls import ALPN, SUITE
from .transmission import Reply

WAITING_MAX = 1024  # unanswered commands; further ones wait
_KEEP_ALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))


class NotConnectedError(UnavailableError):
    """There is no connection, or it broke before the command was sent."""

    label = "queue_not_connected"


class OutcomeUnknownError(UnavailableError):
    """The connection broke before the answer: the command may have been executed."""

    label = "queue_outcome_unknown"


class ConnectionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Timeouts and options of a connection."""

    versions: tuple[int, int] = (VERSION_MIN, VERSION_MAX)
    connect_timeout_s: float = 10.0
    request_timeout_s: float = 15.0
    patience_s: float = 30.0  # how long a command waits for a connection
    backoff_base_s: float = 0.2
    backoff_max_s: float = 60.0
    ping_interval_s: float = 300.0
    inner_encryption: bool = True  # off leaves out our key, as test clients do
    service: ServiceCard | None = None  # the certificate of a service


class _Waiting:
    __slots__ = ("answer", "sent")

    def __init__(self, answer: "asyncio.Future[Answer]") -> None:
        self.answer = answer
        self.sent = False


class Connection:
    """Made by `connect`."""

    def __init__(
        self,
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        exchange: Exchange,
        on_event: Callable[[Reply], None],
        *,
        request_timeout_s: float,
    ) -> None:
        self._reader, self._writer = streams
        self._exchange = exchange
        self._on_event = on_event
        self._request_timeout_s = request_timeout_s
        self._waiting: dict[bytes, _Waiting] = {}
        self._room = asyncio.Semaphore(WAITING_MAX)
        loop = asyncio.get_running_loop()
        self._out: TurnBatch[Said] = TurnBatch(self._flush, loop)
        self.end_reason = ""  # why it ended
        self.ended = asyncio.Event()
        self.heard_at = loop.time()
        self._task = loop.create_task(self._read(), name="queue-connection")

    @property
    def session(self) -> Session:
        return self._exchange.session

    @property
    def blocks(self) -> tuple[int, int]:
        """Received and sent, after the hellos."""
        return self._exchange.blocks_in, self._exchange.blocks_out

    async def ask(
        self,
        command: Command,
        *,
        entity_id: bytes = b"",
        key: PrivateKey | None = None,
        corr_id: bytes | None = None,
    ) -> Answer:
        async with self._room:
            if self.ended.is_set():
                raise NotConnectedError(self.end_reason or "the connection has ended")
            said = self._exchange.say(command, entity_id=entity_id, key=key, corr_id=corr_id)
            waiting = _Waiting(asyncio.get_running_loop().create_future())
            self._waiting[said.corr_id] = waiting
            self._out.add(said)
            try:
                async with asyncio.timeout(self._request_timeout_s):
                    return await waiting.answer
            except TimeoutError as exc:
                self._end(f"no answer within {self._request_timeout_s:g} s")
                raise OutcomeUnknownError(self.end_reason) from exc
            finally:
                self._exchange.forget(said.corr_id)
                self._waiting.pop(said.corr_id, None)

    async def close(self) -> None:
        self._end("closed")
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(1):
                await self._writer.wait_closed()

    def _flush(self, items: list[Said]) -> None:
        if self.ended.is_set():
            return
        # Commands whose caller has given up are left out.
        wanted = [said for said in items if said.corr_id in self._waiting]
        if wanted:
            for block in self._exchange.blocks(said.transmission for said in wanted):
                self._writer.write(block)
            for said in wanted:
                self._waiting[said.corr_id].sent = True

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        reason = "the connection has ended"
        try:
            while True:
                block = await self._reader.readexactly(BLOCK_BYTES)
                self.heard_at = loop.time()
                for reply in self._exchange.block(block):
                    self._hear(reply)
        except asyncio.IncompleteReadError:
            reason = "the server closed the connection"
        except (OSError, BadBytesError) as exc:
            reason = str(exc) or type(exc).__name__
        finally:
            self._end(reason)

    def _hear(self, reply: Reply) -> None:
        if not reply.corr_id:
            self._on_event(reply)
            return
        waiting = self._waiting.get(reply.corr_id)
        if waiting is not None and not waiting.answer.done():
            waiting.answer.set_result(reply.answer)

    def _end(self, reason: str) -> None:
        if self.ended.is_set():
            return
        self.end_reason = reason
        self.ended.set()
        self._writer.transport.abort()
        for waiting in self._waiting.values():
            if not waiting.answer.done():
                error = OutcomeUnknownError if waiting.sent else NotConnectedError
                waiting.answer.set_exception(error(reason))


class Dial(Protocol):
    """Opens a connection; the default is `connect` below."""

    async def __call__(
        self,
        server: ServerAddress,
        on_event: Callable[[Reply], None],
        tls: ssl.SSLContext,
        settings: ConnectionSettings,
        /,
    ) -> Connection: ...


async def connect(
    server: ServerAddress,
    on_event: Callable[[Reply], None],
    tls: ssl.SSLContext,
    settings: ConnectionSettings,
) -> Connection:
    """Connects to the first host of the address that answers."""
    reason: Exception | None = None
    for host in server.hosts:
        try:
            async with asyncio.timeout(settings.connect_timeout_s):
                streams = await asyncio.open_connection(
                    host.strip("[]"),
                    server.port,
                    ssl=tls,
                    server_hostname="",
                    limit=BLOCK_BYTES * 4,
                )
        except (OSError, TimeoutError) as exc:
            reason = exc
            continue
        try:
            async with asyncio.timeout(settings.connect_timeout_s):
                exchange = await _greet(streams, server, settings)
        except BaseException as exc:
            streams[1].transport.abort()
            if isinstance(exc, asyncio.IncompleteReadError):
                raise NotConnectedError("the server closed the connection at its start") from exc
            if isinstance(exc, OSError | TimeoutError):
                raise NotConnectedError(_describe(exc)) from exc
            raise
        return Connection(streams, exchange, on_event, request_timeout_s=settings.request_timeout_s)
    raise NotConnectedError(_describe(reason)) from reason


async def _greet(
    streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    server: ServerAddress,
    settings: ConnectionSettings,
) -> Exchange:
    reader, writer = streams
    session_id, leaf = _look_at_tls(writer)
    hello = decode_server_hello(unpad(await reader.readexactly(BLOCK_BYTES)))
    server_key = check_server(
        hello,
        session_id=session_id,
        leaf=leaf,
        fingerprint=server.fingerprint,
        now=datetime.now(UTC),
    )
    version = common_version(hello.version_min, hello.version_max, settings.versions)
    private = PrivateKey.generate("x25519") if settings.inner_encryption else None
    public = private.public if private is not None else None
    card, own = settings.service, PrivateKey.generate("ed25519")
    if card is not None and version < SERVICES_SINCE:
        raise VersionError(f"services need version {SERVICES_SINCE}; the server speaks {version}")
    said = None if card is None else card.hello(own)
    ours = encode_client_hello(version, server.fingerprint, public, service=said)
    writer.write(plain_block(ours))
    service = None
    if card is not None:
        service = card.welcomed(unpad(await reader.readexactly(BLOCK_BYTES)), own)
    session = Session(
        version, session_id, server_key, hello.version_min, hello.version_max, service
    )
    return Exchange(session, *block_ends(session, private))


def _look_at_tls(writer: asyncio.StreamWriter) -> tuple[bytes, bytes]:
    """The session id and the leaf certificate; raises `IdentityError` for unsuitable TLS."""
    tls: ssl.SSLObject = writer.get_extra_info("ssl_object")
    cipher = tls.cipher()
    if cipher is None or cipher[0] != SUITE:
        raise IdentityError(f"the server chose another cipher suite than {SUITE}")
    if tls.selected_alpn_protocol() != ALPN:
        raise IdentityError("the server does not speak SMP here (no ALPN smp/1)")
    session_id = tls.get_channel_binding("tls-unique")
    leaf = tls.getpeercert(binary_form=True)
    if session_id is None or len(session_id) != SESSION_ID_BYTES or leaf is None:
        raise IdentityError("TLS gave no session id, or the server no certificate")
    _keep_alive(writer)
    return session_id, leaf


def _keep_alive(writer: asyncio.StreamWriter) -> None:
    raw = writer.get_extra_info("socket")
    with contextlib.suppress(OSError, AttributeError):
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEP_ALIVE:
            raw.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _describe(reason: Exception | None) -> str:
    if isinstance(reason, TimeoutError):
        return "the server does not answer"
    if isinstance(reason, ssl.SSLError):
        return f"TLS failed: {reason.reason or reason}"
    return str(reason) or type(reason).__name__
