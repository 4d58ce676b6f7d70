"""Delivers party messages to one session: sending, acks, retries, resync.

Rule 1: unsent messages are not copied; they are the party's log above `sent_seq`. In flight are the
        messages sent and not acknowledged, at most `inflight_max`. At that limit sending pauses.
Rule 2: first deliveries ascend in `party_seq` without gaps, except what a LIST_RESYNC covers.
Rule 3: a retry round sends everything in flight again, ascending. A message that was sent
        `max_deliveries` times is dropped, and one LIST_RESYNC repairs the client's view.
Rule 4: a round that repeats a message older than an acknowledged one, or than a LIST sent since, is
        followed by one LIST_RESYNC. Without it, a client that applies messages as they arrive
        would show a participant that has left.
Rule 5: a session that is more than `lag_max` messages behind gets one LIST_RESYNC in their place.
        The cursor moves over them when that LIST is acknowledged, not before.
Rule 6: out = acked + dropped + superseded + in flight, always.
Rule 7: `unacked_since` is set when a message is sent while none is unacknowledged, moved by an ack
        that leaves some, cleared by an ack that leaves none, and set again by a resume. Drops,
        retries and superseded LISTs do not move it.

Every message to every session passes here (`fan_out`), so this core calls streams and its port
directly and returns no effects.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from waystation.presence.model import (
    LOCAL_COUNTER_MASK,
    ClientId,
    MessageType,
    Now,
    SessionId,
    Status,
    is_local_id,
    local_id_base,
)
from waystation.presence.party.log import Announcement
from waystation.presence.wire import server_messages as write

from .in_flight import DeliveryCounters, DeliveryPort, SentMessage, Terms

if TYPE_CHECKING:
    from waystation.net.http2.port import Stream
    from waystation.presence.party.party import Party

LISTS_MAX: Final = 4  # unacknowledged LISTs of a session; older ones are superseded
_REPLACED_BY_LIST: Final = frozenset((MessageType.JOIN, MessageType.LIST, MessageType.UPDATE))
_EARLY_S: Final = 1e-6
_JOIN: Final = MessageType.JOIN  # module constants: reading an enum member is slow
_LIST: Final = MessageType.LIST


@dataclass(slots=True, eq=False, repr=False)  # ids do not reach a log
class Delivery:
    """A dataclass: each message sets its fields, and setting those of a struct takes 30 ns more."""

    party: "Party"
    client_id: ClientId
    session_id: SessionId
    _terms: Terms
    _port: DeliveryPort
    counters: DeliveryCounters
    inflight_max: int
    _ladder: tuple[float, ...]
    behind_at: int | None  # last `seq` sent; None: all of the log (rule 4 of `Party`)
    holder: object = None  # its session, until the session ends
    stream: "Stream | None" = None
    id_base: int = 0
    id_n: int = 0
    inflight: dict[int, SentMessage] = field(default_factory=dict[int, SentMessage])
    blocked_at: float | None = None
    unacked_since: float | None = None
    acked_high: int = 0
    list_seq: int = 0  # position of the last LIST that was sent
    last_list_id: int = 0
    _list_due: Status | None = None  # status of a LIST that waits until the log is sent
    _resync_due: bool = False  # a LIST_RESYNC waits for the transport
    resync_from: int | None = None  # the cursor before a LIST_RESYNC not yet acknowledged
    _conflated_at: list[float] | None = None
    retry_handle: int = 0  # of the retry timer; 0: not armed
    seed: bool = False
    muted: bool = False  # gets no party messages
    detached_marks: bool = False
    known: frozenset[int] | None = None  # seqs and ids acknowledged on another node
    acked_n: int = 0
    retried_n: int = 0
    dropped_n: int = 0
    superseded_n: int = 0

    def set_ttl(self, ttl_s: float) -> None:
        self._ladder = self._terms.ladder_for(ttl_s)

    @property
    def sent_seq(self) -> int:
        at = self.behind_at
        return self.party.seq if at is None else at

    @property
    def cursor(self) -> int:
        """The highest `seq` up to which everything is acknowledged, dropped or covered."""
        for sent in self.inflight.values():
            if sent.kind is _JOIN:
                return sent.seq - 1
        return self.sent_seq

    @property
    def out_n(self) -> int:
        """Computed from the other counters (rule 6)."""
        return self.acked_n + self.dropped_n + self.superseded_n + len(self.inflight)

    @property
    def saved_cursor(self) -> int:
        """The cursor to resume from; an unacknowledged LIST_RESYNC does not count yet."""
        return self.cursor if self.resync_from is None else min(self.resync_from, self.cursor)

    def has_room(self) -> bool:
        return self.blocked_at is None and len(self.inflight) < self.inflight_max

    def next_id(self) -> int:
        self.id_n = self.id_n + 1 & LOCAL_COUNTER_MASK
        return self.id_base + self.id_n

    # --- binding ---------------------------------------------------------------------------------

    def bind(self, stream: "Stream", fence: int) -> None:
        self.stream = stream
        self.id_base = local_id_base(fence)
        self.id_n = 0
        if not self.muted:
            self.party.enter(self)

    def unbind(self) -> None:
        """Without a stream nothing is sent or retried."""
        self.party.quit(self)
        self.stream = None
        self.blocked_at = None

    def welcome(self, now: Now) -> None:
        """Sends the LIST to a new session; announcements after it follow."""
        self.send_list(Status.OK, now)
        self.party.keep_up(self)

    def resume(self, now: Now, *, resync: bool) -> int:
        """Sends the LIST, the unacknowledged and the unsent messages, and a closing LIST if there
        were any. `resync`: the log has a gap after our position. Returns how many were sent."""
        party = self.party
        self._list_due = None
        self._resync_due = False
        self.unacked_since = now.mono
        again = Status.OK if self.resync_from is None else Status.LIST_RESYNC
        before = self.cursor
        left = [f for f in self.inflight.values() if f.kind is MessageType.JOIN]
        self._supersede(len(self.inflight) - len(left))
        self.inflight = {}
        behind = party.seq - self.sent_seq
        if resync or behind > self._terms.lag_max or not party.log.reaches_back_to(self.sent_seq):
            self._supersede(len(left))
            self._cover_from(before)
            self.behind_at = party.seq
            self.acked_high = 0  # a new epoch starts its numbers again
            self.counters.resyncs += 1
            self.send_list(Status.LIST_RESYNC, now)
            self.party.keep_up(self)
            return 0
        self.send_list(again, now)
        for sent in left:
            self._send_again(sent, now.mono, tries=1)
        before = self.out_n
        self.pump(now)
        count = len(left) + self.out_n - before
        self.counters.redelivered += count
        if count:
            self.list_when_caught_up(Status.OK, now)
        return count

    # --- sending ---------------------------------------------------------------------------------

    def offer_later(self, one: Announcement, now: Now) -> None:
        """An announcement while others are unsent: sent in its turn, or covered by a LIST."""
        if self._resync_due:
            self.behind_at = one.seq  # covered by the waiting LIST
        elif one.seq - self.sent_seq > self._terms.lag_max:
            self.conflate(now)
        elif self.has_room():
            self.pump(now)

    def pump(self, now: Now) -> None:
        """Sends unsent messages, as far as the in-flight limit and the transport allow."""
        stream, at, party = self.stream, self.behind_at, self.party
        if stream is None or at is None or self.blocked_at is not None:
            return
        if self._resync_due:
            self._resync_due = False
            self.behind_at = at = party.seq
            self.send_list(Status.LIST_RESYNC, now)
        if self.muted:
            self.behind_at = at = party.seq
        while at < party.seq:
            if not self.has_room():
                return
            one = party.log.get(at + 1)
            if one is None:
                self.conflate(now)
                return
            self.behind_at = at = one.seq
            if self._wants(one):
                self._port.fan_out.send({self: stream}, one, now.mono)
        self.known = None
        if self._list_due is not None:
            status, self._list_due = self._list_due, None
            self.send_list(status, now)
        self.party.keep_up(self)

    def _wants(self, one: Announcement) -> bool:
        """False for own messages, types it does not know, and messages acknowledged elsewhere."""
        mine = one.session_id == self.session_id and one.client_id == self.client_id
        if mine or (self.seed and one.is_signal):
            return False
        return not self.known or not (one.seq in self.known or one.message_id in self.known)

    def list_when_caught_up(self, status: Status, now: Now) -> None:
        """Sends a LIST when all announcements are sent, so that its position is right."""
        if self.stream is None or self._resync_due:
            return
        if self.muted or (self.sent_seq >= self.party.seq and self.blocked_at is None):
            self.send_list(status, now)
        elif self._list_due is not Status.LIST_RESYNC:
            self._list_due = status

    def send_list(self, status: Status, now: Now) -> None:
        party = self.party
        if self.inflight:
            self._forget_lists(0 if status is Status.LIST_RESYNC else LISTS_MAX - 1)
        message_id = self.next_id()
        data = write.participants(
            message_id,
            max(now.ms, party.at_ms),
            party.seq,
            party.epoch,
            party.roster.entries(self.client_id, self.session_id, detached=self.detached_marks),
            status,
        )
        self.list_seq = party.seq
        self.last_list_id = message_id
        self.send_local(message_id, data, _LIST, now.mono)

    def send_local(self, message_id: int, data: bytes, kind: MessageType, mono: float) -> None:
        """Sends a message to one client alone, at once; it must be acknowledged."""
        stream = self.stream
        if stream is None:
            return
        self.inflight[message_id] = SentMessage(self.party.seq, message_id, data, kind, mono, mono)
        if self.unacked_since is None:
            self.unacked_since = mono
        self.counters.out += 1
        stream.send(data)
        if not self.retry_handle:
            self.arm()
        if len(self.inflight) >= self.inflight_max or not stream.writable:
            self.stop(mono)

    def _send_again(self, sent: SentMessage, mono: float, *, tries: int) -> SentMessage:
        """Replaces the `SentMessage`, which other sessions may share, by one of its own."""
        sent = replace(sent, last_mono=mono, tries=tries, deliveries=sent.deliveries + 1)
        self.inflight[sent.message_id] = sent
        assert self.stream is not None, "no retries without a stream"
        self.stream.send(write.repeated(sent.data, sent.deliveries))
        if not self.retry_handle:
            self.arm()
        return sent

    # --- acks ------------------------------------------------------------------------------------

    def would_acknowledge(self, ids: Sequence[int], upto: int) -> bool:
        """Whether such an ack would acknowledge anything."""
        inflight = self.inflight
        for one in ids:
            if one in inflight:
                return True
        return upto > 0 and upto > self.cursor

    def acked(self, ids: Sequence[int], upto: int, now: Now) -> bool:
        """Applies an ack; whether it acknowledged anything."""
        inflight, counters = self.inflight, self.counters
        settled: list[SentMessage] = []
        for one in ids:
            sent = inflight.pop(one, None)
            if sent is not None:
                settled.append(sent)
            elif self._was_sent(one):
                counters.acked_again += 1
            else:
                counters.acked_unknown += 1
        if upto:
            if upto >= self.list_seq:
                self.resync_from = None
            for sent in list(inflight.values()):
                if sent.kind is _JOIN:
                    if sent.seq > upto:
                        break
                    del inflight[sent.message_id]
                    settled.append(sent)
        if not settled:
            return False
        count, high, mono, port = len(settled), self.acked_high, now.mono, self._port
        self.acked_n += count
        counters.acked += count
        for sent in settled:
            port.latencies_s.append(mono - sent.first_mono)
            if sent.seq > high:  # noqa: PLR1730 for every ack
                high = sent.seq
            if sent.kind is _LIST:
                self.resync_from = None  # no earlier LIST is in flight any more
            if port.acks_until_sample:
                port.acks_until_sample -= 1
                if not port.acks_until_sample:
                    port.acked(self, sent, mono)
        self.acked_high = high
        self.unacked_since = mono if inflight else None
        if self.behind_at is not None:
            self.pump(now)
        return True

    def _was_sent(self, message_id: int) -> bool:
        if is_local_id(message_id):
            return self.id_base < message_id <= self.id_base + self.id_n
        return message_id >> 63 == 1 and message_id <= self.party.message_id

    # --- retries, drops, conflation --------------------------------------------------------------

    def arm(self) -> None:
        oldest = next(iter(self.inflight.values()), None)
        if oldest is not None:
            due = oldest.last_mono + self._ladder[oldest.tries - 1]
            self.retry_handle = self._port.arm_retry(self, due)

    def retry(self, now: Now) -> None:
        """The retry timer is due."""
        self.retry_handle = 0
        if self.stream is None or not self.inflight:
            return
        oldest = next(iter(self.inflight.values()))
        due = oldest.last_mono + self._ladder[oldest.tries - 1]
        if due > now.mono + _EARLY_S:
            self.arm()
        elif self.blocked_at is not None:
            self.retry_handle = self._port.arm_retry(self, now.mono + self._ladder[0])
        else:
            self._round(now)

    def _round(self, now: Now) -> None:
        terms, counters = self._terms, self.counters
        sent_messages, before = list(self.inflight.values()), self.cursor
        seen = self.acked_high, self.list_seq, self.last_list_id
        repair = any(sent.misleads(*seen) for sent in sent_messages)
        for sent in sent_messages:
            if sent.tries >= terms.deliveries_max:
                del self.inflight[sent.message_id]
                self.dropped_n += 1
                counters.dropped += 1
                if sent.kind in _REPLACED_BY_LIST:
                    repair = True
                    self._cover_from(before)
                self._port.dropped(self, sent, now.mono)
        if repair:
            self._forget_lists(0)
        for sent in list(self.inflight.values()):
            again = self._send_again(sent, now.mono, tries=sent.tries + 1)
            self.retried_n += 1
            counters.retried += 1
            self._port.retried(self, again, now.mono)
        if repair:
            counters.resyncs += 1
            self.list_when_caught_up(Status.LIST_RESYNC, now)
        stream = self.stream
        if stream is not None and not stream.writable:
            self.stop(now.mono)
        self.pump(now)
        if not self.retry_handle:
            self.arm()

    def start_over(self, now: Now) -> None:
        """Replaces everything unsent and in flight by one LIST_RESYNC."""
        self._cover_from(self.cursor)
        replaced = [f for f in self.inflight.values() if f.kind in _REPLACED_BY_LIST]
        for sent in replaced:
            del self.inflight[sent.message_id]
        self._supersede(len(replaced))
        self.party.fall_behind(self)
        self.behind_at = self.party.seq
        self._list_due = None
        self.counters.resyncs += 1
        if self.blocked_at is None:
            self.send_list(Status.LIST_RESYNC, now)
            self.party.keep_up(self)
        else:
            self._resync_due = True

    def _cover_from(self, cursor: int) -> None:
        """Remembers that a LIST_RESYNC covers what is above `cursor`, in case it is lost."""
        if self.resync_from is None:
            self.resync_from = cursor

    def conflate(self, now: Now) -> None:
        """Resyncs a session that is too far behind; if that happens too often, it is too slow."""
        self.start_over(now)
        since = now.mono - self._terms.conflation_window_s
        recent = [at for at in self._conflated_at or () if at > since]
        recent.append(now.mono)
        self._conflated_at = recent
        if len(recent) >= self._terms.conflations_max:
            self._port.too_slow(self, now)

    def _forget_lists(self, keep: int) -> None:
        lists = [f for f in self.inflight.values() if f.kind is MessageType.LIST]
        for sent in lists[: max(0, len(lists) - keep)]:
            del self.inflight[sent.message_id]
            self._supersede(1)

    def _supersede(self, count: int) -> None:
        self.superseded_n += count
        self.counters.superseded += count

    # --- the transport ---------------------------------------------------------------------------

    def stop(self, mono: float) -> None:
        """The in-flight limit is reached, or the transport accepts no more."""
        self.party.fall_behind(self)
        stream = self.stream
        if stream is not None and not stream.writable and self.blocked_at is None:
            self.blocked_at = mono
            self._port.blocked(self, mono)

    def unblocked(self, now: Now) -> None:
        self.blocked_at = None
        self.pump(now)
