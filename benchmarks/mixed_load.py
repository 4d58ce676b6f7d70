"""POSTs as many different senders send them: planned from a seed, written before the clock starts.

Rule 1: a plan is a number of POSTs, not a duration: two servers get the same requests.
Rule 2: a sender has one POST under way; `in_flight` of them are, over all senders.
"""

import asyncio
import itertools
import random
import time
from collections.abc import Iterator, Sequence
from time import perf_counter

import msgspec
import pybase64

from waystation.client.vapid import VapidKey, origin_of

from .sender_libraries import BODY_BYTES_MAX, Habits, habits_of
from .senders import NUMBER_BYTES, Answers
from .wire import AskedConnection, LoadError, host_and_port

RUN_TIMEOUT_S = 170.0  # less than what the parent waits
_TOKEN_LIFETIME_S = 12 * 3600


class RealisticScale(msgspec.Struct, frozen=True, kw_only=True):
    """How much of everything, over all load processes."""

    agents: int = 10_000
    app_servers: int = 1_000
    posts: int = 24_000
    stored_posts: int = 16_000
    in_flight: int = 32
    processes: int = 4
    patience_s: float = 5.0  # without a notification: those that are missing are lost
    seed: int = 18


REALISTIC_QUICK = RealisticScale(agents=2_000, posts=8_000, stored_posts=6_000, processes=2)
REALISTIC_SMOKE = RealisticScale(
    agents=40, app_servers=40, posts=200, stored_posts=100, in_flight=4, processes=2, patience_s=1.0
)


class Sender:
    """One app server: its key, its habits, the endpoints it may post to."""

    def __init__(self, number: int, rng: random.Random) -> None:
        self.habits: Habits = habits_of(number, rng)
        self.key = VapidKey.generate()
        self.subject = f"mailto:push-{number}@sender-{number}.example"
        self.endpoints: list[str] = []
        self.connection: AskedConnection | None = None  # that it keeps
        self._token = ""

    def token(self, audience: str) -> str:
        if not self._token or not self.habits.reuses_token:
            expires_at_s = int(time.time()) + _TOKEN_LIFETIME_S
            self._token = self.key.sign(audience, expires_at_s=expires_at_s, subject=self.subject)
        return self._token


class Post(msgspec.Struct, frozen=True):
    number: int
    sender: Sender
    head: bytes  # with the empty line
    body_bytes: int


class MixedLoad(Answers):
    def __init__(
        self, endpoint_url: str, senders: Sequence[Sender], rng: random.Random, *, in_flight: int
    ) -> None:
        super().__init__()
        host, port = host_and_port(endpoint_url)
        self._address = (host, port)
        self._senders = senders
        self._rng = rng
        self._in_flight = in_flight
        self._filler = rng.randbytes(BODY_BYTES_MAX)
        self._numbers = itertools.count()
        self.seconds = 0.0
        self.connections_opened = 0

    def plan(self, posts: int, *, ttl_s_min: int = 0) -> list[list[Post]]:
        """One lane for each POST under way. A lane has senders of its own, so that no sender has
        two POSTs under way, and a sender takes its endpoints by turns."""
        able = [sender for sender in self._senders if sender.endpoints]
        lanes = [able[lane :: self._in_flight] for lane in range(min(self._in_flight, len(able)))]
        share = -(-posts // len(lanes))
        return [list(self._lane(lane, share, ttl_s_min)) for lane in lanes]

    def _lane(self, lane: Sequence[Sender], posts: int, ttl_s_min: int) -> Iterator[Post]:
        host = f"{self._address[0]}:{self._address[1]}"
        templates = {sender: sender.habits.template(host, ttl_s_min) for sender in lane}
        turns = {sender: itertools.cycle(sender.endpoints) for sender in lane}
        for sender in self._rng.choices(lane, k=posts):
            yield self._post(sender, next(turns[sender]), templates[sender])

    def _post(self, sender: Sender, endpoint: str, template: str) -> Post:
        number = next(self._numbers)
        body_bytes = sender.habits.body_bytes(self._rng)
        filled = template.format(
            token=sender.token(origin_of(endpoint)),
            key=sender.key.public_text,
            length=body_bytes,
            topic=f"t{number}",  # new for each: nothing is replaced, so nothing may be missing
            salt=self._base64url(16) if sender.habits.library.legacy else "",
            dh=self._base64url(65) if sender.habits.library.legacy else "",
            request_id=f"{self._rng.getrandbits(128):032x}",
        )
        path = endpoint[endpoint.index("/", 8) :]
        head = f"POST {path} HTTP/1.1\r\n{filled}\r\n\r\n".encode()
        return Post(number, sender, head, body_bytes)

    def _base64url(self, size: int) -> str:
        return pybase64.urlsafe_b64encode(self._rng.randbytes(size)).rstrip(b"=").decode()

    async def connect(self) -> None:
        """Those connections that senders keep."""
        for sender in self._senders:
            if sender.habits.reuses_connection and sender.connection is None:
                sender.connection = await self._open()

    async def run(self, plan: Sequence[Sequence[Post]]) -> None:
        began = perf_counter()
        self.connections_opened = 0  # those that senders keep do not count
        async with asyncio.timeout(RUN_TIMEOUT_S):
            await asyncio.gather(*(self._work(lane) for lane in plan))
        self.seconds = perf_counter() - began

    async def _work(self, lane: Sequence[Post]) -> None:
        for post in lane:
            sender = post.sender
            began = perf_counter()
            connection = sender.connection or await self._open()
            self.sent_at[post.number] = began
            body = post.number.to_bytes(NUMBER_BYTES) + self._filler[NUMBER_BYTES : post.body_bytes]
            self.answered(post.number, await connection.ask(post.head + body), began)
            if not sender.habits.reuses_connection:
                connection.transport.close()

    async def _open(self) -> AskedConnection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(AskedConnection, *self._address)
        self.connections_opened += 1
        return connection

    def close(self) -> None:
        for sender in self._senders:
            if sender.connection is not None:
                sender.connection.transport.abort()
                sender.connection = None


def senders_of(count: int, rng: random.Random) -> list[Sender]:
    if count < 1:
        raise LoadError("a load process needs at least one sender")
    return [Sender(number, rng) for number in range(count)]
