"""A client of DynamoDB's HTTP API: JSON 1.0 over kept connections, signed by Signature V4.

Credentials come from botocore's chain (environment, profile, container, instance) and are renewed
by it. Everything else is here, because botocore spends 700 µs of CPU on a request (ADR 13).

Rule 1: one request at a time on a connection. A request that is cancelled or times out closes its
        connection, so that no later request reads its answer.
Rule 2: `NotSentError` says that DynamoDB cannot have carried out the request; after
        `NoAnswerError` it may have.
Rule 3: an answer whose checksum (`x-amz-crc32`) is wrong counts as no answer.
"""

import asyncio
import functools
import hashlib
import hmac
import os
import ssl
import time
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Final, cast
from urllib.parse import urlsplit

import httptools
import msgspec
from aiobotocore.session import (  # pyright: ignore[reportMissingTypeStubs]
    get_session,  # pyright: ignore[reportUnknownVariableType]
)
from botocore.exceptions import (  # pyright: ignore[reportMissingTypeStubs]
    BotoCoreError,
)

IDLE_MAX_S: Final = 12.0  # a connection that was idle for longer is not used again
_TARGET: Final = "DynamoDB_20120810."
_TYPE: Final = "application/x-amz-json-1.0"
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class ServiceError(Exception):
    """DynamoDB refused the request; `answer` is the body, which may have `Item` or reasons."""

    def __init__(self, code: str, answer: Mapping[str, Any]) -> None:
        super().__init__(code)
        self.code = code
        self.answer = answer


class NotSentError(Exception):
    """No connection: the request was not sent."""


class CredentialsError(Exception):
    """There are no AWS credentials, or they cannot be renewed."""


class NoAnswerError(Exception):
    """The connection broke after the request was sent, or the answer was damaged."""


class Credentials(msgspec.Struct, frozen=True):
    access_key: str
    secret_key: str
    token: str | None = None


class Signer:
    """Signature V4 for requests to DynamoDB; the derived key is kept for its day."""

    def __init__(self, region: str, host: str) -> None:
        self._region = region
        self._host = host
        self._key = b""
        self._key_of: tuple[str, str] = ("", "")  # the day and secret that it was derived from

    def head(self, operation: str, body: bytes, credentials: Credentials, now_s: float) -> bytes:
        """The request line and headers of a signed request, up to the body."""
        moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_s))
        day = moment[:8]
        signed = "content-type;host;x-amz-date"
        lines = f"content-type:{_TYPE}\nhost:{self._host}\nx-amz-date:{moment}\n"
        token = ""
        if credentials.token is not None:
            signed += ";x-amz-security-token"
            lines += f"x-amz-security-token:{credentials.token}\n"
            token = f"X-Amz-Security-Token: {credentials.token}\r\n"
        signed += ";x-amz-target"
        target = _TARGET + operation
        canonical = (
            f"POST\n/\n\n{lines}x-amz-target:{target}\n\n{signed}\n"
            f"{hashlib.sha256(body).hexdigest()}"
        )
        scope = f"{day}/{self._region}/dynamodb/aws4_request"
        digest = hashlib.sha256(canonical.encode()).hexdigest()
        to_sign = f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n{digest}"
        signature = hmac.digest(
            self._derived(day, credentials.secret_key), to_sign.encode(), "sha256"
        ).hex()
        return (
            f"POST / HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: {_TYPE}\r\n"
            f"X-Amz-Date: {moment}\r\nX-Amz-Target: {target}\r\n{token}"
            f"Authorization: AWS4-HMAC-SHA256 Credential={credentials.access_key}/{scope}, "
            f"SignedHeaders={signed}, Signature={signature}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        ).encode()

    def _derived(self, day: str, secret: str) -> bytes:
        if self._key_of != (day, secret):
            key = f"AWS4{secret}".encode()
            for part in (day, self._region, "dynamodb", "aws4_request"):
                key = hmac.digest(key, part.encode(), "sha256")
            self._key, self._key_of = key, (day, secret)
        return self._key


class _Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._body: list[bytes] = []
        self._checksum: int | None = None
        self.kept = True  # may carry another request
        self.idle_since = 0.0

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        if self._transport is None or self._transport.is_closing():
            raise NotSentError("the connection was closed")
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer

    def close(self) -> None:
        self.kept = False
        if self._transport is not None:
            self._transport.abort()

    # asyncio calls these

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass of it

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as exc:
            self._fail(NoAnswerError(f"not an HTTP answer: {exc}"))

    def connection_lost(self, exc: Exception | None) -> None:
        self.kept = False
        self._fail(NoAnswerError(f"the connection was closed: {exc or 'end of stream'}"))

    def _fail(self, exc: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc)
        self.close()

    # httptools calls these

    def on_message_begin(self) -> None:
        self._body = []
        self._checksum = None

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"x-amz-crc32" and value.isdigit():
            self._checksum = int(value)

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            return
        self.kept = self.kept and self._parser.should_keep_alive()
        body = b"".join(self._body)
        if self._checksum is not None and zlib.crc32(body) != self._checksum:
            self._fail(NoAnswerError("the checksum of the answer is wrong"))
        elif self._answer is not None and not self._answer.done():
            self._answer.set_result((status, body))


class Client:
    """Its user bounds the number of calls at once and the time of each."""

    def __init__(
        self,
        region: str,
        endpoint: str,
        credentials: Any,  # of aiobotocore; None: fixed ones of DynamoDB Local
        *,
        connect_timeout_s: float,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        parts = urlsplit(endpoint)
        assert parts.hostname is not None
        self._secure = parts.scheme == "https"
        self._address = (parts.hostname, parts.port or (443 if self._secure else 80))
        self._tls = ssl.create_default_context() if self._secure else None
        self._signer = Signer(region, parts.netloc)
        self._credentials = credentials
        self._connect_timeout_s = connect_timeout_s
        self._wall_s = wall_s
        self._idle: list[_Connection] = []

    @classmethod
    async def open(cls, region: str, endpoint: str, *, connect_timeout_s: float) -> "Client":
        """`endpoint` empty: the region's service."""
        if endpoint and not {"AWS_ACCESS_KEY_ID", "AWS_PROFILE"} & os.environ.keys():
            return cls(region, endpoint, None, connect_timeout_s=connect_timeout_s)
        session = _session()
        try:
            credentials = await session.get_credentials()
            if not endpoint:
                resolver = session.get_component("endpoint_resolver")
                known = resolver.construct_endpoint("dynamodb", region)
                endpoint = f"https://{known['hostname']}"
        except BotoCoreError as exc:
            raise CredentialsError(str(exc)) from exc
        if credentials is None:
            raise CredentialsError("there are no AWS credentials")
        return cls(region, endpoint, credentials, connect_timeout_s=connect_timeout_s)

    async def call(self, operation: str, request: Mapping[str, Any]) -> dict[str, Any]:
        body = _encode(request)
        head = self._signer.head(operation, body, await self._frozen(), self._wall_s())
        connection = await self._connection()
        try:
            status, answer = await connection.ask(head + body)
        except BaseException:  # a cancelled request closes its connection, too (rule 1)
            connection.close()
            raise
        if connection.kept:
            connection.idle_since = time.monotonic()
            self._idle.append(connection)
        else:
            connection.close()
        if status == 200:
            return _decode(answer)
        raise _service_error(status, answer)

    async def _frozen(self) -> Credentials:
        if self._credentials is None:
            return _LOCAL
        try:
            frozen = await self._credentials.get_frozen_credentials()
        except BotoCoreError as exc:
            raise CredentialsError(f"AWS credentials cannot be renewed: {exc}") from exc
        return Credentials(frozen.access_key, frozen.secret_key, frozen.token)

    async def _connection(self) -> _Connection:
        oldest = time.monotonic() - IDLE_MAX_S
        while self._idle:
            connection = self._idle.pop()
            if connection.kept and connection.idle_since > oldest:
                return connection
            connection.close()
        loop = asyncio.get_running_loop()
        host, port = self._address
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, connection = await loop.create_connection(_Connection, host, port, ssl=self._tls)
        except TimeoutError:
            raise NotSentError(f"no connection in {self._connect_timeout_s} s") from None
        except OSError as exc:
            raise NotSentError(str(exc)) from exc
        return connection

    async def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()
        await asyncio.sleep(0)  # transports close in the next turn


_LOCAL: Final = Credentials("local", "local")  # DynamoDB Local accepts any signature


@functools.cache
def _session() -> Any:
    """Loads botocore's data of endpoints, once."""
    return get_session()


def _service_error(status: int, body: bytes) -> ServiceError:
    try:
        answer: Any = _decode(body)
        code = str(answer.get("__type", "")).rpartition("#")[2]
    except (msgspec.DecodeError, AttributeError):  # something in between has answered
        answer, code = {}, ""
    return ServiceError(code or ("ServiceUnavailable" if status >= 500 else f"{status}"), answer)
