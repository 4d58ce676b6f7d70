"""What clients must have received, computed from their sent and received messages alone.

Each party has a *watcher*, a session that stays to the end: the messages that it received, without
repetitions, are the history of its party, and those of other sessions must be a part of it. `check`
returns every violation as a sentence that begins with the letter of the broken rule (§18.9 of the
specification of presence):

a order, b ghosts and holes, c completeness, d reasons, e silence, f timing, g answers, h ids,
i timestamps.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from waystation.presence.wire import party_presence_pb2 as pb
from waystation.presence.wire.party_presence_pb2 import ClientMessage

Member = tuple[int, int]  # client, session
PARTY_KINDS = {pb.JOIN, pb.LEAVE}
UNANSWERED = {pb.ACK}
ANSWERS = {pb.ACK, pb.ERROR}
RESUME_ONLY = 1
ROUNDING_MS = 5  # two readings of one clock


class StreamMessage(msgspec.Struct):
    """One message on one stream of a session, and when (wall time)."""

    at_ms: int
    stream: int
    message: ClientMessage


class SessionRecord(msgspec.Struct, kw_only=True):
    """All messages that one session has sent and received."""

    party: int
    client: int
    session: int
    watches: bool = False
    said: list[StreamMessage] = []
    heard: list[StreamMessage] = []
    cut: set[int] = set()  # streams that we, or a kill, ended: answers may be missing there
    stalls: bool = False  # it acknowledges nothing more
    silent_since_ms: int | None = None  # it sends nothing more, on purpose
    gone: bool = False  # it is not in the party at the end, and knows it

    @property
    def member(self) -> Member:
        return self.client, self.session

    @property
    def name(self) -> str:
        return f"{self.client}/{self.session:x} in {self.party}"


class Oracle:
    def __init__(
        self, *, ttl_ms: int, late_ms: int, restarts: bool = False, nodes_lost: bool = False
    ) -> None:
        """`late_ms` is what a busy machine may add to a timeout; after restarts of the broker
        sessions have more time, so then only early ends are mistakes. Where nodes are killed and
        others go on, a session that stays away may be reported as lost with its node."""
        self._ttl_ms = ttl_ms
        self._late_ms = late_ms
        self._restarts = restarts
        self._silent = {pb.CLIENT_TIMEOUT, pb.NODE_LOST} if nodes_lost else {pb.CLIENT_TIMEOUT}

    def check(self, records: Sequence[SessionRecord]) -> list[str]:
        parties: dict[int, list[SessionRecord]] = defaultdict(list)
        for record in records:
            parties[record.party].append(record)
        found: list[str] = []
        for party, members in parties.items():
            watchers = [record for record in members if record.watches]
            assert len(watchers) == 1, f"party {party} needs one watcher"
            found += self._check_party(watchers[0], members)
        return found

    def _check_party(
        self, watcher: SessionRecord, records: Sequence[SessionRecord]
    ) -> Iterable[str]:
        history = _history(watcher)
        yield from _check_history(history)
        by_id = {message.message_id: message for message in history.values()}
        truth = _memberships(watcher, history)
        for record in records:
            yield from _check_contents(record, history, by_id)
            yield from _check_order(record, history)
            yield from _check_lists(record, truth)
            yield from _check_view(record, history, truth)
            yield from check_answers(record)
            yield from self._check_life(record, history)

    def _check_life(
        self, record: SessionRecord, history: dict[int, ClientMessage]
    ) -> Iterable[str]:
        """Rules c, d, e and f: what the party saw of one session."""
        if record.watches:
            return
        mine = [one for one in history.values() if (one.client_id, one.session_id) == record.member]
        joins = [one for one in mine if one.message_type == pb.JOIN]
        leaves = [one for one in mine if one.message_type == pb.LEAVE]
        created = _accepted_joins(record)
        # A JOIN that took effect and was never answered, because its node died, makes a session
        # that its client may find ended (5: DETACHED, deadline, EXPIRED) when it comes back at
        # last: the id then names a new session, which is announced again (5, after the table).
        unknown = _unanswered_joins(record) if self._restarts else 0
        if created and not 1 <= len(joins) <= 1 + unknown:
            yield f"c {record.name}: its JOIN was announced {len(joins)} times"
        if len(leaves) > max(1, len(joins)):
            yield f"e {record.name}: left {len(leaves)} times"
        if record.gone and created and not leaves:
            yield f"c {record.name}: nobody was told that it left"
        if not record.gone and len(leaves) >= max(1, len(joins)):
            yield f"e {record.name}: is said to have left, and had not"
        for leave in leaves:
            yield from self._check_leave(record, leave)

    def _check_leave(self, record: SessionRecord, leave: ClientMessage) -> Iterable[str]:
        said_leave = [word for word in record.said if word.message.message_type == pb.LEAVE]
        code = leave.status_code
        if code == pb.OK:
            if not said_leave:
                yield f"d {record.name}: left with OK and never said so"
            return
        if code == pb.ACK_TIMEOUT:
            # Ack progress, or a resume, begins a whole TTL (8.1); an answered PING does not (5).
            began = _last_progress_ms(record, leave.timestamp, fresh_ms=self._ttl_ms * 3 // 4)
            if began is not None and leave.timestamp < began + self._ttl_ms - ROUNDING_MS:
                yield (
                    f"d {record.name}: left with ACK_TIMEOUT {leave.timestamp - began} ms after it"
                    f" acknowledged {_last_words(record, leave.timestamp)}"
                )
            return
        if code not in self._silent:
            yield f"d {record.name}: left with code {code}"
            return
        spoke = _last_confirmed_ms(record, before_ms=leave.timestamp)
        if spoke is not None and leave.timestamp < spoke + self._ttl_ms - ROUNDING_MS:
            early = spoke + self._ttl_ms - leave.timestamp
            yield f"f {record.name}: timed out {early} ms early"
        silent = record.silent_since_ms
        if silent is not None and not self._restarts:
            late = leave.timestamp - silent - self._ttl_ms
            if late > self._late_ms:
                yield f"f {record.name}: timed out {late} ms late"


def _last_words(record: SessionRecord, before_ms: int) -> str:
    """The messages before that time, for error messages."""

    def told(words: Sequence[StreamMessage], mark: str) -> list[tuple[int, str]]:
        rows: list[tuple[int, str]] = []
        for word in words:
            message = word.message
            ids = [hex(one)[-6:] for one in message.ack_message_ids]
            row = f"{mark}{word.stream} type {message.message_type} {hex(message.message_id)[-6:]}"
            again = f" attempt {message.delivery_attempt}" if message.delivery_attempt else ""
            rows.append((word.at_ms, f"{word.at_ms - before_ms:+d} {row}{again} acks {ids}"))
        return rows

    rows = sorted([*told(record.said, "said on "), *told(record.heard, "heard on ")])
    near = [row for at_ms, row in rows if at_ms < before_ms + 2000]
    return "\n    ".join([f"(stalls: {record.stalls})", *near[-30:]])


def _history(watcher: SessionRecord) -> dict[int, ClientMessage]:
    """`party_seq` -> the first time that the watcher heard it."""
    history: dict[int, ClientMessage] = {}
    for word in watcher.heard:
        if word.message.message_type in PARTY_KINDS:
            history.setdefault(word.message.party_seq, word.message)
    return history


def _check_history(history: dict[int, ClientMessage]) -> Iterable[str]:
    seqs = sorted(history)
    for before, after in itertools.pairwise(seqs):
        if after != before + 1:
            yield f"a the watcher's history has a hole between {before} and {after}"
        if history[after].message_id <= history[before].message_id:
            yield f"h ids do not grow from {before} to {after}"
        if history[after].timestamp < history[before].timestamp:
            yield f"i timestamps go back from {before} to {after}"


def _memberships(
    watcher: SessionRecord, history: dict[int, ClientMessage]
) -> dict[int, set[Member]]:
    """Who is in the party, the watcher included, after each message that the watcher knows of."""
    first = next((w.message for w in watcher.heard if w.message.message_type == pb.LIST), None)
    if first is None:
        return {}
    present = {*_listed(first), watcher.member}
    truth = {first.party_seq: set(present)}
    for seq in sorted(history):
        message = history[seq]
        member = (message.client_id, message.session_id)
        (present.add if message.message_type == pb.JOIN else present.discard)(member)
        truth[seq] = set(present)
    return truth


def _listed(message: ClientMessage) -> set[Member]:
    return {
        (entry.client_id, session)
        for entry in message.participant_client_ids
        for session in entry.session_id
    }


def _check_contents(
    record: SessionRecord, history: dict[int, ClientMessage], by_id: dict[int, ClientMessage]
) -> Iterable[str]:
    """Rules a and h: one message is the same for all, and comes from this party."""
    for word in record.heard:
        message = word.message
        if message.message_type not in PARTY_KINDS:
            continue
        known = history.get(message.party_seq)
        if known is None or by_id.get(message.message_id) is None:
            yield f"a {record.name}: heard {message.party_seq}, which the watcher never did"
        elif _content(known) != _content(message):
            yield f"h {record.name}: {message.party_seq} has two contents"
        if (message.client_id, message.session_id) == record.member:
            yield f"a {record.name}: was told of itself"
        if message.party_id != record.party:
            yield f"a {record.name}: heard of party {message.party_id}"


def _content(message: ClientMessage) -> tuple[int, ...]:
    return (
        message.message_id,
        message.message_type,
        message.client_id,
        message.session_id,
        message.status_code,
        message.timestamp,
    )


def _check_order(record: SessionRecord, history: dict[int, ClientMessage]) -> Iterable[str]:
    """Rule a: what lies below the first LIST of a stream is delivered again, ascending; above it,
    first deliveries ascend without holes, except behind a LIST_RESYNC."""
    floor: dict[int, int] = {}
    again: dict[int, int] = {}
    position: dict[int, int] = {}
    for word in record.heard:
        message, stream = word.message, word.stream
        seq = message.party_seq
        if message.message_type == pb.LIST:
            floor.setdefault(stream, seq)
            if stream not in position or message.status_code == pb.LIST_RESYNC:
                position[stream] = max(position.get(stream, 0), seq)
            continue
        if message.message_type not in PARTY_KINDS or message.delivery_attempt:
            continue
        if stream not in floor:
            yield f"a {record.name}: heard {seq} before its LIST"
            continue
        if seq <= floor[stream]:
            if seq <= again.get(stream, 0):
                yield f"a {record.name}: {seq} was delivered again after {again[stream]}"
            again[stream] = seq
            continue
        for missing in range(position[stream] + 1, seq):
            skipped = history.get(missing)
            if skipped is None or (skipped.client_id, skipped.session_id) != record.member:
                yield f"a {record.name}: {missing} is missing before {seq}"
        if seq <= position[stream]:
            yield f"a {record.name}: {seq} comes after {position[stream]}"
        position[stream] = max(position[stream], seq)


def _check_lists(record: SessionRecord, truth: dict[int, set[Member]]) -> Iterable[str]:
    """Rule b: a LIST is the membership at its position, without whom it is for."""
    for word in record.heard:
        if word.message.message_type == pb.LIST and word.message.party_seq in truth:
            expected = truth[word.message.party_seq] - {record.member}
            if _listed(word.message) != expected:
                yield f"b {record.name}: the LIST at {word.message.party_seq} is wrong"


def _check_view(
    record: SessionRecord, history: dict[int, ClientMessage], truth: dict[int, set[Member]]
) -> Iterable[str]:
    """Rule b at rest: who is still there knows who is there, also if it is simple-minded."""
    if record.gone or not history or record.silent_since_ms is not None or record.stalls:
        return
    naive: set[Member] = set()
    # What an older stream still says once a newer one has begun is history.
    for word in sorted(record.heard, key=lambda word: word.stream):
        message = word.message
        if message.message_type == pb.LIST:
            naive = _listed(message)
        elif message.message_type in PARTY_KINDS:
            member = (message.client_id, message.session_id)
            (naive.add if message.message_type == pb.JOIN else naive.discard)(member)
    expected = truth[max(truth)] - {record.member}
    for ghost in naive - expected:
        yield f"b {record.name}: still sees {ghost}"
    for hole in expected - naive:
        yield f"b {record.name}: does not see {hole}"


def check_answers(record: SessionRecord) -> Iterable[str]:
    """Rule g: on streams that were not cut, everything but an ACK is answered once."""
    answers: Counter[tuple[int, int]] = Counter()
    for word in record.heard:
        if word.message.message_type in ANSWERS:
            answers.update((word.stream, one) for one in word.message.ack_message_ids)
    asked: Counter[tuple[int, int]] = Counter()
    for word in record.said:
        if word.message.message_type not in UNANSWERED:
            asked[word.stream, word.message.message_id] += 1
    for key, count in asked.items():
        if key[0] in record.cut:
            if answers[key] > count:
                yield f"g {record.name}: message {key[1]} was answered {answers[key]} times"
        elif answers[key] != count:
            times = f"{answers[key]} times, not {count}"
            yield f"g {record.name}: message {key[1]} was answered {times}"


def _accepted_joins(record: SessionRecord) -> bool:
    """Whether the broker has acknowledged that the session exists."""
    joins = {w.message.message_id for w in record.said if w.message.message_type == pb.JOIN}
    return any(
        word.message.message_type == pb.ACK and joins & set(word.message.ack_message_ids)
        for word in record.heard
    )


def _unanswered_joins(record: SessionRecord) -> int:
    """Those that may have made a session; one that may only resume never does (5.4)."""
    answered = {one for word in record.heard for one in word.message.ack_message_ids}
    joins = [w.message for w in record.said if w.message.message_type == pb.JOIN]
    return sum(not one.flags & RESUME_ONLY and one.message_id not in answered for one in joins)


def _last_confirmed_ms(record: SessionRecord, before_ms: int) -> int | None:
    """When the last message was said that the broker has certainly taken before that time."""
    confirmed = {
        one
        for word in record.heard
        if word.message.message_type == pb.ACK and word.at_ms <= before_ms
        for one in word.message.ack_message_ids
    }
    times = [word.at_ms for word in record.said if word.message.message_id in confirmed]
    return max(times, default=None)


def _last_progress_ms(record: SessionRecord, before_ms: int, fresh_ms: int) -> int | None:
    """When it last said something that began its time anew, and that the broker has certainly read
    before then, because something said later on the same stream was answered: a JOIN, or the first
    receipt of a party message. One that is repeated, or comes when the message may have been
    dropped already, acknowledges nothing (6.3, 6.4); a LIST may have been replaced by another."""
    confirmed = {
        one
        for word in record.heard
        if word.message.message_type == pb.ACK and word.at_ms <= before_ms
        for one in word.message.ack_message_ids
    }
    owed: dict[tuple[int, int], int] = {}  # stream and id -> when the party heard it
    for word in record.heard:
        if word.message.message_type in PARTY_KINDS:
            owed.setdefault((word.stream, word.message.message_id), word.message.timestamp)
    began: dict[int, int] = {}  # of each stream
    last: int | None = None
    for word in sorted(record.said, key=lambda word: word.at_ms):
        message, stream = word.message, word.stream
        times = [owed.pop((stream, one), 0) for one in message.ack_message_ids]
        if message.message_type == pb.JOIN or any(word.at_ms < at + fresh_ms for at in times):
            began[stream] = word.at_ms
        if message.message_type != pb.ACK and message.message_id in confirmed and stream in began:
            last = max(last or 0, began[stream])
    return last
