"""A model of Redis for the presence world: the commands that its store uses, in one process.

The store of production (`RedisPresenceStore`) runs on it. Its scripts are in `redis_scripts`. The
store conformance suite, and a comparison with a real Redis, check the model.

Rule 1: a command or a script is atomic; others may run between two of them.
Rule 2: time is the server's own; expired keys are gone.
Rule 3: a published message is handed to every listener at that moment, in order.
"""

from collections.abc import Callable, Sequence
from typing import Any

from tests.sim.presence.redis_scripts import SCRIPTS
from waystation.base.clock import Clock

Hear = Callable[[bytes, bytes], None]


def raw(value: object) -> bytes:
    """A value as Redis stores it."""
    return value if isinstance(value, bytes) else str(value).encode()


class RedisModel:
    """Keys and values as bytes; hashes, sets, sorted sets, streams and strings."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._values: dict[bytes, Any] = {}
        self._ends_ms: dict[bytes, int] = {}
        self._listeners: dict[bytes, dict[Hear, None]] = {}
        self.commands = 0

    def now_ms(self) -> int:
        return self._clock.now_ms()

    # --- what scripts use ------------------------------------------------------------------------

    def peek(self, key: bytes) -> Any:
        ends_ms = self._ends_ms.get(key)
        if ends_ms is not None and ends_ms <= self.now_ms():
            self.drop(key)
        return self._values.get(key)

    def rows(self, key: bytes) -> dict[Any, Any]:
        """The rows of a key, to read; does not create it."""
        found: dict[Any, Any] | None = self.peek(key)
        return {} if found is None else found

    def table(self, key: bytes) -> dict[bytes, Any]:
        """A hash (to values) or a sorted set (to scores), made if it is missing."""
        if self.peek(key) is None:
            self._values[key] = {}
        return self._values[key]

    def log(self, key: bytes) -> dict[int, bytes]:
        """A stream, by the number before the dash of its ids."""
        if self.peek(key) is None:
            self._values[key] = {}
        return self._values[key]

    def tidy(self, key: bytes) -> None:
        """An empty value is no value."""
        if not self._values.get(key, True):
            self.drop(key)

    def drop(self, key: bytes) -> int:
        self._ends_ms.pop(key, None)
        return 0 if self._values.pop(key, None) is None else 1

    def keep(self, key: bytes) -> None:
        if self.peek(key) is not None:
            self._ends_ms.pop(key, None)

    def end_in(self, key: bytes, after_ms: int) -> None:
        if self.peek(key) is not None:
            self._ends_ms[key] = self.now_ms() + after_ms

    def publish(self, channel: bytes, data: bytes) -> None:
        for hear in list(self._listeners.get(channel, ())):
            hear(channel, data)

    # --- listening -------------------------------------------------------------------------------

    def listen(self, channel: bytes, hear: Hear) -> None:
        self._listeners.setdefault(channel, {})[hear] = None

    def unlisten(self, channel: bytes, hear: Hear) -> None:
        self._listeners.get(channel, {}).pop(hear, None)

    # --- commands --------------------------------------------------------------------------------

    def run(self, command: Sequence[object]) -> Any:
        self.commands += 1
        name, *args = (raw(part) for part in command)
        return getattr(self, f"_{name.decode().lower()}")(*args)

    def run_script(self, name: str, keys: Sequence[str], args: Sequence[object]) -> Any:
        self.commands += 1
        return SCRIPTS[name](self, [raw(key) for key in keys], [raw(arg) for arg in args])

    def _ping(self) -> bytes:
        return b"PONG"

    def _time(self) -> list[bytes]:
        now_ms = self.now_ms()
        return [raw(now_ms // 1000), raw(now_ms % 1000 * 1000)]

    def _flushdb(self) -> bytes:
        self._values.clear()
        self._ends_ms.clear()
        return b"OK"

    def _del(self, key: bytes) -> int:
        return self.drop(key) if self.peek(key) is not None else 0

    def _get(self, key: bytes) -> bytes | None:
        return self.peek(key)

    def _set(self, key: bytes, value: bytes, *options: bytes) -> bytes | None:
        if b"NX" in options and self.peek(key) is not None:
            return None
        self._values[key] = value
        self._ends_ms.pop(key, None)
        if b"PX" in options:
            self.end_in(key, int(options[options.index(b"PX") + 1]))
        return b"OK"

    def _pexpire(self, key: bytes, after_ms: bytes) -> int:
        self.end_in(key, int(after_ms))
        return int(self.peek(key) is not None)

    def _persist(self, key: bytes) -> int:
        self.keep(key)
        return 1

    def _pttl(self, key: bytes) -> int:
        if self.peek(key) is None:
            return -2
        ends_ms = self._ends_ms.get(key)
        return -1 if ends_ms is None else ends_ms - self.now_ms()

    def _sadd(self, key: bytes, member: bytes) -> int:
        members = self.table(key)
        fresh = member not in members
        members[member] = None
        return int(fresh)

    def _smembers(self, key: bytes) -> list[bytes]:
        return list(self.rows(key))

    def _hget(self, key: bytes, field: bytes) -> bytes | None:
        return self.rows(key).get(field)

    def _hmget(self, key: bytes, *fields: bytes) -> list[bytes | None]:
        found = self.rows(key)
        return [found.get(field) for field in fields]

    def _hgetall(self, key: bytes) -> list[bytes]:
        return [part for pair in self.rows(key).items() for part in pair]

    def _hvals(self, key: bytes) -> list[bytes]:
        return list(self.rows(key).values())

    def _zadd(self, key: bytes, *args: bytes) -> int:
        *options, score, member = args
        found = self.rows(key)
        if b"XX" in options and member not in found:
            return 0
        if b"LT" in options and found.get(member, float("inf")) <= float(score):
            return 0
        fresh = member not in found
        self.table(key)[member] = float(score)
        return int(fresh)

    def _zrem(self, key: bytes, member: bytes) -> int:
        found = self.peek(key)
        if found is None or found.pop(member, None) is None:
            return 0
        self.tidy(key)
        return 1

    def _zcard(self, key: bytes) -> int:
        return len(self.rows(key))

    def ranked(self, key: bytes) -> list[tuple[float, bytes]]:
        return sorted((score, member) for member, score in self.rows(key).items())

    def _zrange(self, key: bytes, _first: bytes, _last: bytes) -> list[bytes]:
        return [member for _, member in self.ranked(key)]

    def _zrangebyscore(
        self, key: bytes, _low: bytes, high: bytes, *_scores_and_limit: bytes
    ) -> list[bytes]:
        due = [(member, raw(int(s))) for s, member in self.ranked(key) if s <= float(high)]
        return [part for pair in due[: int(_scores_and_limit[-1])] for part in pair]

    def _xrange(self, key: bytes, first: bytes, _last: bytes, *count: bytes) -> list[Any]:
        after = 0 if first == b"-" else int(first.lstrip(b"(").split(b"-")[0])
        rows = [(seq, data) for seq, data in self.rows(key).items() if seq > after]
        if count:
            rows = rows[: int(count[1])]
        return [[raw(f"{seq}-0"), [b"e", data]] for seq, data in rows]

    def _spublish(self, channel: bytes, data: bytes) -> int:
        self.publish(channel, data)
        return 1

    def _wait(self, _replicas: bytes, _timeout: bytes) -> int:
        return 0
