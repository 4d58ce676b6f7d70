"""The party scripts for the model of Redis: ports of `storage/redis/scripts/party*.lua`.

They follow the Lua line by line, on the same rows, so that the store of production reads them. A
script takes the server, its keys (meta, sessions, clients, log, detached, bell) and its arguments
as bytes.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tests.sim.presence.redis import RedisModel

EPOCH_2020: Final = 1_577_836_800_000
COUNTER_MAX: Final = 2_097_151
FIELDS: Final = (
    *("active", "owner", "incarnation", "fence", "joined_seq", "joined_ms", "cursor", "ttl"),
    *("flags", "hash", "previous", "previous_until", "detached_ms", "deadline", "cause"),
    *("signal", "token_exp"),
)
REASONS: Final = {b"5": b"18", b"6": b"19", b"8": b"20"}
NODE_LOST: Final = b"8"

Record = dict[str, bytes]


def whole(number: int) -> bytes:
    return b"%d" % number


class PartyRows:
    """One party's keys, and the steps that all scripts share."""

    def __init__(self, redis: "RedisModel", keys: Sequence[bytes]) -> None:
        self.redis = redis
        self.keys = keys
        self.meta_key, self.sessions_key, self.clients_key, self.log_key = keys[:4]
        self.detached_key, self.bell = keys[4:]
        self.now_ms = redis.now_ms()

    def meta(self, field: bytes) -> bytes | None:
        return self.redis.rows(self.meta_key).get(field)

    def sessions(self) -> dict[bytes, bytes]:
        return self.redis.rows(self.sessions_key)

    def record(self, field: bytes) -> Record | None:
        text = self.sessions().get(field)
        return None if text is None else unpack(text)

    def put(self, field: bytes, record: Record) -> bytes:
        text = b"|".join(record[name] for name in FIELDS)
        self.redis.table(self.sessions_key)[field] = text
        return text

    def fits(self, record: Record, fence: bytes, holder: Sequence[bytes]) -> bool:
        """Whether whoever says so still holds the session and may write."""
        return [record["fence"], record["owner"], record["incarnation"]] == [fence, *holder]

    def awaits(self, field: bytes, record: Record, cause: bytes) -> None:
        """Without a stream, for one TTL from now."""
        deadline = self.now_ms + int(record["ttl"])
        record.update(
            active=b"0", cause=cause, detached_ms=whole(self.now_ms), deadline=whole(deadline)
        )
        self.put(field, record)
        self.redis.table(self.detached_key)[field] = float(deadline)

    def expected(self, field: bytes) -> None:
        found = self.redis.peek(self.detached_key)
        if found is not None:
            found.pop(field, None)
            self.redis.tidy(self.detached_key)

    def append(
        self, kind: bytes, field: bytes, *, count: int, code: bytes, payload: bytes, log_max: bytes
    ) -> tuple[int, bytes]:
        meta = self.redis.table(self.meta_key)
        seq = int(meta.get(b"seq", b"0")) + 1
        at_ms = max(int(meta.get(b"ts", b"0")), self.now_ms)
        ms, n = int(meta.get(b"hlc_ms", b"0")), int(meta.get(b"hlc_n", b"-1"))
        wall = self.now_ms - EPOCH_2020
        if wall > ms:
            ms, n = wall, 0
        elif n >= COUNTER_MAX:
            ms, n = ms + 1, 0
        else:
            n += 1
        meta.update(
            {b"seq": whole(seq), b"ts": whole(at_ms), b"hlc_ms": whole(ms), b"hlc_n": whole(n)}
        )
        parts = (whole(seq), kind, field, whole(ms), whole(n), whole(at_ms), whole(count))
        entry = b":".join((*parts, code, payload))
        log = self.redis.log(self.log_key)
        log[seq] = entry
        while len(log) > int(log_max):
            del log[next(iter(log))]
        self.redis.publish(self.bell, b"e" + meta[b"epoch"] + b":" + entry)
        return seq, whole(at_ms)

    def remove(
        self, field: bytes, code: bytes, log_max: bytes, linger_ms: bytes
    ) -> tuple[int, int, int]:
        """A session is gone: its LEAVE is logged, and an empty party lingers."""
        sessions = self.redis.table(self.sessions_key)
        sessions.pop(field, None)
        self.redis.tidy(self.sessions_key)
        self.expected(field)
        clients = self.redis.table(self.clients_key)
        count = int(clients.get(field[:16], b"0")) - 1
        if count > 0:
            clients[field[:16]] = whole(count)
        else:
            count = 0
            clients.pop(field[:16], None)
        self.redis.tidy(self.clients_key)
        seq, _ = self.append(b"3", field, count=count, code=code, payload=b"", log_max=log_max)
        size = len(self.sessions())
        if not size:
            for key in self.keys[:5]:
                self.redis.end_in(key, int(linger_ms))
        return seq, size, count

    def seen_from(self, known_epoch: bytes, known_seq: bytes) -> tuple[bytes, list[bytes]]:
        """Everybody, or only what the caller has not seen yet."""
        if known_epoch == self.meta(b"epoch"):
            log: dict[int, bytes] = self.redis.rows(self.log_key)
            if next(iter(log), 0) <= int(known_seq) + 1:
                return b"entries", [row for seq, row in log.items() if seq > int(known_seq)]
        return b"members", [field + text[:1] for field, text in self.sessions().items()]


def unpack(text: bytes) -> Record:
    return dict(zip(FIELDS, text.split(b"|"), strict=True))


def join(party: PartyRows, args: Sequence[bytes]) -> Any:
    field, owner, incarnation, ttl, flags, digest, token_exp, party_max, client_max = args[:9]
    evict, log_max, linger_ms, new_epoch, known_epoch, known_seq, id_unique = args[9:]
    found = party.sessions().get(field)
    if found is not None:
        return [b"exists", found]
    if id_unique == b"1" and any(one[16:] == field[16:] for one in party.sessions()):
        return [b"rejected", 3]
    redis, client = party.redis, field[:16]
    mine = int(redis.rows(party.clients_key).get(client, b"0"))
    if mine >= int(client_max):
        if evict != b"1":
            return [b"rejected", 69]
        records = {one: unpack(row) for one, row in party.sessions().items() if one[:16] == client}
        oldest = min(
            records, key=lambda one: (records[one]["active"], int(records[one]["joined_seq"]))
        )
        party.remove(oldest, b"22", log_max, linger_ms)
    elif len(party.sessions()) >= int(party_max):
        return [b"rejected", 68]
    opened = not party.sessions()
    redis.table(party.meta_key).setdefault(b"epoch", new_epoch)
    if opened:
        for key in party.keys[:5]:
            redis.keep(key)
    clients = redis.table(party.clients_key)
    count = int(clients.get(client, b"0")) + 1
    clients[client] = whole(count)
    seq, at_ms = party.append(b"2", field, count=count, code=b"0", payload=b"", log_max=log_max)
    nothing = dict.fromkeys(FIELDS, b"0")
    party.put(
        field,
        nothing
        | {
            "active": b"1",
            "owner": owner,
            "incarnation": incarnation,
            "fence": b"1",
            "joined_seq": whole(seq),
            "joined_ms": at_ms,
            "cursor": whole(seq),
            "ttl": ttl,
            "flags": flags,
            "hash": digest,
            "previous": b"",
            "token_exp": token_exp,
            "signal": b"0" * 16,
        },
    )
    kind, rows = party.seen_from(known_epoch, known_seq)
    size = len(party.sessions())
    return [b"joined", seq, party.meta(b"epoch"), at_ms, count, size, int(opened), kind, rows]


def attach(party: PartyRows, args: Sequence[bytes]) -> Any:
    field, owner, incarnation, digest, trusted, required, grace, new_digest, ttl, flags = args[:10]
    token_exp, known_epoch, known_seq = args[10:]
    record = party.record(field)
    if record is None:
        return [b"missing"]
    now_ms = party.now_ms
    if trusted != b"1":
        if not digest:
            if record["active"] == b"1":
                return [b"rejected", 3]
            if required == b"1":
                return [b"rejected", 70]
        elif digest != record["hash"] and not (
            record["previous"]
            and digest == record["previous"]
            and now_ms < int(record["previous_until"])
        ):
            return [b"rejected", 70]
    before = dict(record)
    lost_ms = int(record["detached_ms"])
    record.update(
        active=b"1",
        owner=owner,
        incarnation=incarnation,
        fence=whole(int(record["fence"]) + 1),
        previous=digest if digest and trusted != b"1" else record["hash"],
        previous_until=whole(now_ms + int(grace)),
        hash=new_digest,
        ttl=ttl or record["ttl"],
        flags=whole(_merged_flags(int(record["flags"]), int(flags))),
        token_exp=token_exp,
        detached_ms=b"0",
        deadline=b"0",
        cause=b"0",
    )
    text = party.put(field, record)
    party.expected(field)
    party.redis.publish(party.bell, b"n4:%b:%b:%b" % (field, record["fence"], owner))
    kind, rows = party.seen_from(known_epoch, known_seq)
    gap_ms = max(0, now_ms - lost_ms) if lost_ms else 0
    was = (before["active"], before["owner"], before["incarnation"])
    return [b"attached", text, *was, gap_ms, party.meta(b"seq"), party.meta(b"epoch"), kind, rows]


def _merged_flags(known: int, wished: int) -> int:
    return (wished & 12 or known & 12) | (known | wished) & 256


def detach(party: PartyRows, args: Sequence[bytes]) -> Any:
    field, fence, cursor, cause, *holder = args
    record = party.record(field)
    if record is None or not party.fits(record, fence, holder):
        return 0
    record["cursor"] = whole(max(int(record["cursor"]), int(cursor)))
    party.awaits(field, record, cause)
    return 1


def leave(party: PartyRows, args: Sequence[bytes]) -> Any:
    field, fence, code, log_max, linger_ms, *holder = args
    record = party.record(field)
    if record is None or (fence != b"0" and not party.fits(record, fence, holder)):
        return None
    return list(party.remove(field, code, log_max, linger_ms))


def signal(party: PartyRows, args: Sequence[bytes]) -> Any:
    field, fence, origin, payload, log_max, *holder = args
    record = party.record(field)
    if record is None or not party.fits(record, fence, holder):
        return None
    if origin <= record["signal"]:
        return 0
    record["signal"] = origin
    party.put(field, record)
    return party.append(b"11", field, count=0, code=b"0", payload=payload, log_max=log_max)[0]


def cursors(party: PartyRows, args: Sequence[bytes]) -> Any:
    for at in range(2, len(args), 3):
        field, fence, cursor = args[at : at + 3]
        record = party.record(field)
        if record is None or not party.fits(record, fence, args[:2]):
            continue
        if int(record["cursor"]) < int(cursor):
            party.put(field, record | {"cursor": cursor})
    return 1


def expire(party: PartyRows, args: Sequence[bytes]) -> Any:
    limit, log_max, linger_ms = args
    ranked = party.redis.ranked(party.detached_key)
    due = [field for score, field in ranked if score <= party.now_ms][: int(limit)]
    for field in due:
        record = party.record(field)
        if record is None:
            party.expected(field)
        else:
            party.remove(field, REASONS.get(record["cause"], b"2"), log_max, linger_ms)
    return [len(due), _earliest(party)]


def orphan(party: PartyRows, args: Sequence[bytes]) -> Any:
    owner, incarnation = args
    count = 0
    for field in list(party.sessions()):
        record = party.record(field)
        assert record is not None
        process = (record["active"], record["owner"], record["incarnation"])
        if process == (b"1", owner, incarnation):
            party.awaits(field, record, NODE_LOST)
            count += 1
    return [count, _earliest(party)]


def _earliest(party: PartyRows) -> bytes:
    ranked = party.redis.ranked(party.detached_key)
    return whole(int(ranked[0][0])) if ranked else b""


def reclaim(party: PartyRows, args: Sequence[bytes]) -> Any:
    moved: list[bytes] = []
    for at in range(2, len(args), 2):
        field, fence = args[at : at + 2]
        record = party.record(field)
        if record is None or not party.fits(record, fence, args[:2]):
            moved.append(field)
        elif record["active"] == b"0" and record["cause"] == NODE_LOST:
            record.update(active=b"1", cause=b"0", detached_ms=b"0", deadline=b"0")
            party.put(field, record)
            party.expected(field)
    return moved


def reset(party: PartyRows, args: Sequence[bytes]) -> Any:
    epoch, seq, new_epoch, floor_ms = args[:4]
    redis = party.redis
    known, at = party.meta(b"epoch"), int(party.meta(b"seq") or b"0")
    if known is None or (known == epoch and at < int(seq)):
        known, at = new_epoch, int(seq)
        meta = redis.table(party.meta_key)
        meta.update({b"epoch": known, b"seq": whole(at)})
        if int(floor_ms) > int(meta.get(b"hlc_ms", b"0")):
            meta.update({b"hlc_ms": floor_ms, b"hlc_n": b"0"})
        redis.drop(party.log_key)
        for key in party.keys[:5]:
            redis.keep(key)
    clients, sessions = redis.table(party.clients_key), redis.table(party.sessions_key)
    # The process that the caller knows, and not behind it: nothing was lost.
    for at_arg in range(4 if known != epoch else len(args), len(args), 2):
        field, text = args[at_arg : at_arg + 2]
        if field not in sessions:
            sessions[field] = text
            clients[field[:16]] = whole(int(clients.get(field[:16], b"0")) + 1)
    redis.tidy(party.clients_key)
    redis.tidy(party.sessions_key)
    return [known, whole(at), party.seen_from(b"", b"0")[1]]


def swept(redis: "RedisModel", keys: Sequence[bytes], args: Sequence[bytes]) -> Any:
    """Of the index of a shard, not of a party."""
    name, seen, following = args
    index = redis.rows(keys[0])
    if index.get(name) != float(seen):
        return 0
    if following:
        index[name] = float(following)
    else:
        del index[name]
        redis.tidy(keys[0])
    return 1


Step = Callable[[PartyRows, Sequence[bytes]], Any]
_STEPS: Final[dict[str, Step]] = {
    "party_join": join,
    "party_attach": attach,
    "party_detach": detach,
    "party_leave": leave,
    "party_signal": signal,
    "party_cursors": cursors,
    "party_expire": expire,
    "party_orphan": orphan,
    "party_reclaim": reclaim,
    "party_reset": reset,
}


def _script(step: Step) -> Callable[["RedisModel", Sequence[bytes], Sequence[bytes]], Any]:
    return lambda redis, keys, args: step(PartyRows(redis, keys), args)


SCRIPTS: Final = {name: _script(step) for name, step in _STEPS.items()} | {"party_swept": swept}
