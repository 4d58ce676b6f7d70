"""App servers: requests whose bytes are ready before the clock starts.

Each POST carries its number in the first bytes of its body, so that whoever receives the
notification knows which POST it was: that gives the whole way's time, and tells lost from late.
"""

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Callable, Sequence
from time import perf_counter

import pybase64

from waystation.client.vapid import VapidKey, origin_of

from .wire import LoadError, PostConnection, host_and_port

BODY_BYTES = 1024
NUMBER_BYTES = 9  # twelve characters of base64, none of them shared with what follows


def number_of(data: str) -> int:
    return int.from_bytes(pybase64.urlsafe_b64decode(data[:12]))


class AppServers:
    """A few signing keys, and the `Authorization` of each POST."""

    def __init__(self, count: int, *, fresh_tokens: int = 0) -> None:
        """With `fresh_tokens` no token is used twice, and there are so many."""
        self.keys = [VapidKey.generate() for _ in range(count)]
        self.public = [key.public_text for key in self.keys]
        self._wanted = fresh_tokens
        self._reused: dict[str, bytes] = {}
        self._fresh: dict[str, list[bytes]] = {}

    def sign(self, endpoint: str) -> None:
        origin = origin_of(endpoint)
        expires_at_s = int(time.time()) + 12 * 3600
        share = -(-self._wanted // len(self.keys))
        for key in self.keys:
            header = key.authorization(origin, expires_at_s=expires_at_s)
            self._reused[key.public_text] = header.encode()
            self._fresh[key.public_text] = [
                key.authorization(
                    origin, expires_at_s=expires_at_s, subject=f"mailto:{number}@example.org"
                ).encode()
                for number in range(share)
            ]

    def reuse(self, other: "AppServers") -> None:
        """The keys of another, with tokens that may be used again and again."""
        self.keys, self.public = other.keys, other.public
        self._reused, self._wanted = other._reused, 0  # noqa: SLF001 - the same class

    def authorization(self, key: str) -> bytes | None:
        """None when the fresh ones are used up."""
        if not self._wanted:
            return self._reused[key]
        fresh = self._fresh[key]
        return fresh.pop() if fresh else None


class Answers:
    """What was posted, and what the server said to it."""

    def __init__(self) -> None:
        self.sent_at: dict[int, float] = {}
        self.accepted: set[int] = set()
        self.statuses: Counter[int] = Counter()
        self.latencies_ms: list[float] = []

    def answered(self, number: int, status: int, sent_at: float) -> None:
        self.statuses[status] += 1
        if status == 201:
            self.accepted.add(number)
            self.latencies_ms.append((perf_counter() - sent_at) * 1000)

    def check(self) -> None:
        others = {status: n for status, n in self.statuses.items() if status not in (201, 503)}
        if others or not self.accepted:
            raise LoadError(f"POSTs were answered {dict(self.statuses)} (0: hung up)")


class PostLoad(Answers):
    """`senders` connections, each with one POST under way, for `seconds`."""

    def __init__(
        self,
        endpoint_base: str,
        targets: Sequence[tuple[str, str]],  # endpoint, app server's key
        app_servers: AppServers,
        *,
        ttl_s: int,
    ) -> None:
        super().__init__()
        host, self._port = host_and_port(endpoint_base)
        self._host = host
        self._app_servers = app_servers
        rest = secrets.token_bytes(BODY_BYTES - NUMBER_BYTES)
        self._rest = rest
        self._heads = [
            (
                f"POST {endpoint[endpoint.index('/', 8) :]} HTTP/1.1\r\n"
                f"Host: {host}:{self._port}\r\n"
                f"TTL: {ttl_s}\r\nUrgency: normal\r\nContent-Encoding: aes128gcm\r\n"
                f"Content-Length: {BODY_BYTES}\r\nAuthorization: "
            ).encode()
            for endpoint, _ in targets
        ]
        self._keys = [key for _, key in targets]
        self._next = 0
        self._ends_at = 0.0
        self._open = 0
        self._idle: asyncio.Event = asyncio.Event()
        self.connections: list[PostConnection] = []
        self.seconds = 0.0

    async def connect(self, senders: int) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(senders):
            connection = PostConnection(self._answered)
            await loop.create_connection(lambda c=connection: c, self._host, self._port)
            self.connections.append(connection)

    async def run(self, seconds: float) -> None:
        began = perf_counter()
        self._ends_at = began + seconds
        self._open = len(self.connections)
        for connection in self.connections:
            self._post(connection)
        await asyncio.wait_for(self._idle.wait(), seconds + 30)
        self.seconds = perf_counter() - began

    def _post(self, connection: PostConnection) -> None:
        number = self._next
        index = number % len(self._heads)
        authorization = self._app_servers.authorization(self._keys[index])
        if authorization is None:
            self._rests()
            return
        self._next = number + 1
        connection.sequence = number
        self.sent_at[number] = perf_counter()
        connection.send(
            b"%b%b\r\n\r\n%b%b"
            % (self._heads[index], authorization, number.to_bytes(NUMBER_BYTES), self._rest)
        )

    def _answered(self, connection: PostConnection, status: int) -> None:
        if status == 0:
            if self._open and not self._idle.is_set():
                self.statuses[0] += 1
                self._rests()
            return
        self.answered(connection.sequence, status, connection.sent_at)
        if perf_counter() < self._ends_at:
            self._post(connection)
        else:
            self._rests()

    def _rests(self) -> None:
        self._open -= 1
        if self._open == 0:
            self._idle.set()

    def close(self) -> None:
        self._open = 0
        for connection in self.connections:
            connection.transport.abort()


async def until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Whether it came true in time."""
    deadline = perf_counter() + timeout_s
    while not condition():
        if perf_counter() > deadline:
            return False
        await asyncio.sleep(0.01)
    return True
