"""Reports presence activity as events, metrics and log lines.

Ids appear as keyed hashes only; tokens and payloads never appear.

Every n-th ack gets an event of its own (`ack_sample`), with n as its weight. Delivery totals are
exact and count from the start of the process: in every row out = acked + dropped + superseded +
outstanding. Their latencies are those since the previous row.
"""

import logging
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Final

import msgspec
from structlog.typing import FilteringBoundLogger

from waystation.base.clock import Clock
from waystation.base.failures import Failures
from waystation.presence.session.in_flight import DeliveryCounters, SentMessage
from waystation.presence.session.session import Session
from waystation.telemetry import events
from waystation.telemetry.hashes import EventHashes
from waystation.telemetry.logs import tag
from waystation.telemetry.metrics import Cell, Metrics

from .event_ids import EventIds
from .metrics import CATALOGUE
from .model import Detached, Entry, MessageType, Now, PartyId, SessionKey, Status
from .store import Joined

LATENCIES_MAX: Final = 4096  # used for the quantiles of one totals event
TIMES_MAX: Final = 65_536  # between two ticks; only the newest are kept
LINES_MAX: Final = 1000  # log lines between two ticks; the events have all
_CAUSE_MAX_DELIVERIES: Final = 1
_NO_ACK: Final = 1
_SIGN: Final = 1 << 63
_UNSIGNED: Final = 1 << 64


def _signed(message_id: int) -> int:
    """As a signed number, which the event contract requires."""
    return message_id - _UNSIGNED if message_id & _SIGN else message_id


class EndedSession(msgspec.Struct, frozen=True, gc=False):
    """A session that ended: the values of its event and its log line."""

    key: SessionKey
    code: Status
    seq: int
    lived_s: float
    resumes: int
    said: int
    in_flight: int
    acked: int
    retried: int
    dropped: int
    superseded: int

    @property
    def out(self) -> int:
        """Messages sent (rule 6 of `delivery`)."""
        return self.acked + self.dropped + self.superseded + self.in_flight


class Reports:
    def __init__(
        self,
        *,
        sink: events.EventSink,
        hashes: EventHashes,
        metrics: Metrics,
        clock: Clock,
        log: FilteringBoundLogger,
        ack_sample: float = 0.01,
    ) -> None:
        for spec in CATALOGUE:
            metrics.declare(spec)
        self._sink = sink
        self._event_ids = EventIds(hashes)
        self._metrics = metrics
        self._clock = clock
        self._log = log
        self._failures = Failures(clock.mono)
        self.counters = DeliveryCounters()
        self.latencies_s: deque[float] = deque(maxlen=TIMES_MAX)
        self._window_s: list[float] = []
        self.ack_every = round(1 / ack_sample) if ack_sample else 0
        self.acks_until_sample = self.ack_every
        self._ack_latency = metrics.histogram("presence_ack_latency_seconds")
        self._fanout = metrics.histogram("presence_fanout_seconds")
        self._fanouts_s: deque[float] = deque(maxlen=TIMES_MAX)  # until the next tick
        self._sent = {
            kind: metrics.counter("presence_messages_sent", type=kind.name.lower())
            for kind in (MessageType.JOIN, MessageType.LEAVE, MessageType.SIGNAL)
        }
        self._cells: dict[tuple[str, str], Cell] = {}
        self._created = metrics.counter("presence_joins", result="created")
        self._left: dict[Status, Cell] = {}
        self._lines: list[EndedSession] = []
        self._gaps = metrics.counter("presence_log_gaps")
        metrics.on_read(self._fill)

    # --- sessions --------------------------------------------------------------------------------

    def started(self, session: Session, joined: Joined, ms: int, *, auth: bool) -> None:
        self._created.value += 1
        self._sink.defer(self._started_event, session.key, joined, session.ttl_s, auth, ms)

    def _started_event(
        self, key: SessionKey, joined: Joined, ttl_s: float, auth: bool, ms: int
    ) -> events.Event:
        party, cli, sess = self._event_ids.session(key, ms)
        return events.PartySessionStarted(
            party=party,
            cli=cli,
            sess=sess,
            n=joined.party_size,
            attrs=events.PartySessionStartedAttrs(
                seq=joined.seq,
                epoch=joined.epoch,
                device_sessions=joined.device_sessions,
                ttl_ms=round(ttl_s * 1000),
                auth=auth,
            ),
        )

    def left(self, session: Session, code: Status, seq: int, now: Now) -> None:
        delivery = session.delivery
        in_flight = len(delivery.inflight)
        self.counters.abandoned += in_flight
        self._leaves(code).value += 1
        one = EndedSession(
            session.key,
            code,
            seq,
            now.mono - session.joined_mono,
            session.resumes,
            session.messages_in,
            in_flight,
            delivery.acked_n,
            delivery.retried_n,
            delivery.dropped_n,
            delivery.superseded_n,
        )
        self._sink.defer(self._left_event, one, now.ms)
        if len(self._lines) < LINES_MAX:
            self._lines.append(one)

    def _left_event(self, one: EndedSession, ms: int) -> events.Event:
        party, cli, sess = self._event_ids.last_of(one.key, ms)
        return events.PartySessionLeft(
            party=party,
            cli=cli,
            sess=sess,
            code=one.code,
            dur=round(one.lived_s * 1e6),
            attrs=events.PartySessionLeftAttrs(
                seq=one.seq,
                out=one.out,
                acked=one.acked,
                retried=one.retried,
                dropped=one.dropped,
                superseded=one.superseded,
                resumes=one.resumes,
            ),
        )

    def _leaves(self, code: Status) -> Cell:
        cell = self._left.get(code)
        if cell is None:
            cell = self._metrics.counter("presence_leaves", reason=code.name.lower())
            self._left[code] = cell
        return cell

    def write_lines(self) -> None:
        """Writes the log lines of ended sessions; called between steps."""
        lines, self._lines = self._lines, []
        if not self._log.is_enabled_for(logging.INFO):
            return  # hashing a tag takes as long as a delivery
        for one in lines:
            self._log.info(
                "session.left",
                reason=one.code.name.lower(),
                party=tag(one.key.party_id.to_bytes(8, "big")),
                lived_s=round(one.lived_s, 1),
                messages_in=one.said,
                out=one.out,
                acked=one.acked,
                resumes=one.resumes,
            )

    def _count(self, name: str, label: str, value: str) -> None:
        cell = self._cells.get((name, value))
        if cell is None:
            cell = self._metrics.counter(name, **{label: value.lower()})
            self._cells[name, value] = cell
        cell.value += 1

    def detached(self, session: Session, cause: Detached) -> None:
        key, count, ms = session.key, len(session.delivery.inflight), self._clock.now_ms()

        def make() -> events.Event:
            return events.PartySessionDetached(
                party=self._event_ids.party(key.party_id, ms),
                sess=self._event_ids.session(key, ms)[2],
                code=cause,
                n=count,
            )

        self._sink.defer(make)
        self._log.debug("session.detached", cause=cause.name.lower(), in_flight=count)

    def resumed(
        self,
        session: Session,
        *,
        how: str,
        gap_ms: int,
        redelivered: int,
        resync: bool,
        from_node: str | None,
    ) -> None:
        self.joined("resumed")
        self._metrics.counter("presence_resumes", how=how).value += 1
        key, ms = session.key, self._clock.now_ms()

        def make() -> events.Event:
            return events.PartySessionResumed(
                party=self._event_ids.party(key.party_id, ms),
                sess=self._event_ids.session(key, ms)[2],
                dur=gap_ms * 1000,
                n=redelivered,
                attrs=events.PartySessionResumedAttrs(how=how, from_node=from_node, resync=resync),
            )

        self._sink.defer(make)
        self._log.debug("session.resumed", how=how, gap_ms=gap_ms, redelivered=redelivered)

    def moved(self, session: Session, peer: str) -> None:
        key, ms = session.key, self._clock.now_ms()
        party, sess = self._event_ids.party(key.party_id, ms), self._event_ids.session(key, ms)[2]
        self._sink.emit(events.PartySessionMoved(party=party, sess=sess, peer=peer or "-", dur=0))

    # --- messages --------------------------------------------------------------------------------

    def broadcast(
        self, party_id: PartyId, entry: Entry, recipients: int, size: int, took_s: float
    ) -> None:
        self._sent[entry.kind].value += 1
        self._fanouts_s.append(took_s)
        self._sink.defer(self._sent_event, party_id, entry, recipients, size)

    def _sent_event(
        self, party_id: PartyId, entry: Entry, recipients: int, size: int
    ) -> events.Event:
        return events.PartyMessageSent(
            party=self._event_ids.party(party_id, entry.at_ms),
            msg=_signed(entry.message_id),
            n=recipients,
            size=size,
            attrs=events.PartyMessageSentAttrs(type=entry.kind.name.lower(), seq=entry.seq),
        )

    def acked(self, key: SessionKey, sent: SentMessage, mono: float) -> None:
        """A sampled ack, one of `ack_every`."""
        ms = self._clock.now_ms()
        self._sink.emit(
            events.PartyMessageAcked(
                party=self._event_ids.party(key.party_id, ms),
                sess=self._event_ids.session(key, ms)[2],
                msg=_signed(sent.message_id),
                n=sent.deliveries,
                dur=round((mono - sent.first_mono) * 1e6),
            ),
            max(1, self.ack_every),
        )

    def retried(self, key: SessionKey, sent: SentMessage, mono: float) -> None:
        ms, n, age_us = self._clock.now_ms(), sent.deliveries, _age_us(sent, mono)
        self._sink.defer(
            lambda: events.PartyMessageRetried(
                party=self._event_ids.party(key.party_id, ms),
                sess=self._event_ids.session(key, ms)[2],
                msg=_signed(sent.message_id),
                n=n,
                dur=age_us,
                code=_NO_ACK,
            )
        )

    def dropped(self, key: SessionKey, sent: SentMessage, mono: float) -> None:
        ms = self._clock.now_ms()
        self._sink.emit(
            events.PartyMessageDropped(
                party=self._event_ids.party(key.party_id, ms),
                sess=self._event_ids.session(key, ms)[2],
                msg=_signed(sent.message_id),
                n=sent.deliveries,
                dur=_age_us(sent, mono),
                code=_CAUSE_MAX_DELIVERIES,
            )
        )

    # --- parties, refusals, the node -------------------------------------------------------------

    def opened(self, party_id: PartyId) -> None:
        self._sink.emit(
            events.PartyOpened(party=self._event_ids.party(party_id, self._clock.now_ms()))
        )

    def closed(self, party_id: PartyId, *, size_max: int, lived_s: float) -> None:
        self._sink.emit(
            events.PartyClosed(
                party=self._event_ids.party(party_id, self._clock.now_ms()),
                n=size_max,
                dur=round(lived_s * 1e6),
            )
        )

    def joined(self, result: str) -> None:
        self._count("presence_joins", "result", result)

    def error(self, status: Status) -> None:
        self._count("presence_errors", "code", status.name)

    def refused(self, what: str, status: Status) -> None:
        """`what`: join, auth or rate."""
        if what == "join":
            self.joined(status.name.lower())
        self._sink.emit(
            events.PartyRefused(code=int(status), attrs=events.PartyRefusedAttrs(what=what))
        )

    def auth(self, result: str) -> None:
        self._metrics.counter("presence_auth", result=result).value += 1

    def gap(self, entries: int) -> None:
        self._gaps.value += entries

    def resync(self, cause: str) -> None:
        self._metrics.counter("presence_resync", cause=cause).value += 1

    def handed_off(self, result: str, sessions: int = 1) -> None:
        self._metrics.counter("presence_handoffs", result=result).value += sessions

    def node_state(self, state: str, sessions: int, reason: str | None = None) -> None:
        self._sink.emit(
            events.PartyNodeState(
                n=sessions, attrs=events.PartyNodeStateAttrs(state=state, reason=reason)
            )
        )
        self._log.info("node.state", state=state, sessions=sessions, reason=reason)

    def trouble(self, what: str, error: BaseException) -> None:
        self._log.error(what, exc_info=error)

    def store_trouble(self, what: str, error: BaseException) -> None:
        if self._failures.is_new(what, error):
            reason = str(error) or type(error).__name__
            self._log.warning("store.trouble", during=what, reason=reason)

    # --- totals ----------------------------------------------------------------------------------

    def observe_latencies(self) -> None:
        if self._lines:
            self.write_lines()
        if self._fanouts_s:
            self._fanout.observe_all(self._fanouts_s)
            self._fanouts_s.clear()
        latencies = self.latencies_s
        if latencies:
            self._ack_latency.observe_all(latencies)
            self._window_s.extend(islice(latencies, LATENCIES_MAX - len(self._window_s)))
            latencies.clear()  # keep the object: deliveries hold a reference

    def totals(self) -> None:
        """Emits delivery totals since the start of the process; called every 10 s."""
        self.observe_latencies()
        counters = self.counters
        window, self._window_s = sorted(self._window_s), []
        self._sink.emit(
            events.PartyDeliveryTotals(
                attrs=events.PartyDeliveryTotalsAttrs(
                    out=counters.out,
                    acked=counters.acked,
                    dropped=counters.dropped,
                    superseded=counters.superseded,
                    outstanding=counters.out
                    - counters.acked
                    - counters.dropped
                    - counters.superseded,
                    retried=counters.retried,
                    redelivered=counters.redelivered,
                    latency_us=_quantiles(window) if window else None,
                )
            )
        )

    def _fill(self) -> None:
        self.observe_latencies()
        counters = self.counters

        def put(cell: Cell, value: int) -> None:
            cell.value = value

        put(self._metrics.counter("presence_deliveries"), counters.out)
        put(self._metrics.counter("presence_acks", kind="new"), counters.acked)
        put(self._metrics.counter("presence_acks", kind="repeat"), counters.acked_again)
        put(self._metrics.counter("presence_acks", kind="unknown"), counters.acked_unknown)
        put(self._metrics.counter("presence_retries"), counters.retried)
        put(self._metrics.counter("presence_drops", cause="max_deliveries"), counters.dropped)
        put(self._metrics.counter("presence_drops", cause="superseded"), counters.superseded)
        put(self._metrics.counter("presence_resync", cause="repair"), counters.resyncs)


def _age_us(sent: SentMessage, mono: float) -> int:
    return round((mono - sent.first_mono) * 1e6)


def _quantiles(ordered_s: Sequence[float]) -> dict[str, int]:
    last = len(ordered_s) - 1
    return {
        f"p{percent}": round(ordered_s[round(last * percent / 100)] * 1e6)
        for percent in (50, 95, 99)
    }
