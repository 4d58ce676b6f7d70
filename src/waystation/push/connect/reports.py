"""Reports activity of a connection node as events, metrics and log lines.

Each connection writes one log line when it ends. Ids appear as keyed hashes only.
"""

from collections.abc import Sequence
from typing import Protocol

from structlog.typing import FilteringBoundLogger

from waystation.base.clock import Clock
from waystation.base.errors import WaystationError
from waystation.base.failures import Failures
from waystation.net.websocket.connection import WebSocket
from waystation.net.websocket.upgrade import Upgrade
from waystation.push.connect.observer import Observer
from waystation.push.connect.session import ALREADY_CONNECTED, Session
from waystation.push.connect.user_agent_header import Families, families
from waystation.push.model import (
    SIMPLEPUSH,
    WEBPUSH,
    ChannelId,
    Milestone,
    Notification,
    Replaced,
    Uaid,
    Update,
)
from waystation.push.node_names import NodeNames
from waystation.push.wire.client_messages import DECRYPTION_ERROR, DELIVERED, NOT_DELIVERED
from waystation.telemetry import events
from waystation.telemetry.hashes import EventHashes
from waystation.telemetry.logs import tag
from waystation.telemetry.metrics import Metrics

DIRECT, STORED = 0, 1  # the contract's `path`
NO_SUBSCRIPTION = 106  # the errno of `NoSubscriptionError`
# A module constant: reading an enum member costs 75 ns on CPython 3.11.
_END_DELIVERED = Milestone.DELIVERED

_ENDS = {
    DELIVERED: Milestone.DELIVERED,
    DECRYPTION_ERROR: Milestone.DECRYPTION_ERROR,
    NOT_DELIVERED: Milestone.NOT_DELIVERED,
}


class Milestones(Protocol):
    """Records milestones of messages without delaying them."""

    def note(self, notification: Notification, milestone: Milestone) -> None: ...


class _Note:
    """Data of a connection that reports need until it ends."""

    __slots__ = ("cid", "families")

    def __init__(self, cid: int, its_families: Families) -> None:
        self.cid = cid
        self.families = its_families


class Reports(Observer):
    def __init__(
        self,
        *,
        sink: events.EventSink,
        hashes: EventHashes,
        metrics: Metrics,
        milestones: Milestones,
        clock: Clock,
        log: FilteringBoundLogger,
        names: NodeNames | None = None,
    ) -> None:
        self._emit = sink.emit
        self._sink = sink
        self._hashes = hashes
        self._names = names or NodeNames(hashes)
        self._metrics = metrics
        self._milestones = milestones
        self._clock = clock
        self._log = log
        self._failures = Failures(clock.mono)
        self._cid = 0
        (self._sent_direct, self._sent_direct_topical), self._sent_stored = (
            tuple(
                metrics.counter("ua_notification_sent", source=source, topic=topic)
                for topic in ("false", "true")
            )
            for source in ("Direct", "Stored")
        )
        self._bytes_direct, self._bytes_stored = (
            metrics.counter("ua_message_data_bytes", source=source)
            for source in ("Direct", "Stored")
        )
        self._acks = metrics.counter("ua_command", command="ack")
        self._refusals = metrics.counter("client_channel_full")

    # Connections

    def opened(self, connection: WebSocket, upgrade: Upgrade) -> object:
        self._cid += 1
        iph = self._hashes.iph(connection.peer_address(), self._clock.now_ms())
        self._emit(events.ConnOpen(cid=self._cid, iph=iph))
        return _Note(self._cid, families(upgrade.user_agent))

    def hello(self, session: Session, note: object) -> None:
        assert isinstance(note, _Note)
        assert session.uaid is not None
        its = note.families
        self._emit(
            events.ConnHello(
                cid=note.cid,
                uah=self._uah(session.uaid),
                flag=not session.known,
                attrs=events.ConnHelloAttrs(os=its.os, browser=its.browser),
            )
        )
        kind = "existing" if session.known else "reassigned" if session.reset else "new"
        self._metrics.counter("ua_command", command="hello", detail=kind).value += 1
        self._metrics.counter("ua_connection_check", os=its.os, browser=its.browser).value += 1

    def hello_refused(self, note: object, code: int) -> None:
        assert isinstance(note, _Note)
        self._emit(events.ConnHelloReject(cid=note.cid, code=code))

    def closed(self, session: Session, note: object, code: int, reason: str) -> None:
        assert isinstance(note, _Note)
        uaid = session.uaid
        lived_ms = self._clock.now_ms() - session.connected_at_ms if uaid is not None else 0
        self._emit(
            events.ConnClose(
                cid=note.cid,
                dur=lived_ms * 1000,
                code=code,
                uah=self._uah(uaid) if uaid is not None else None,
            )
        )
        if reason == ALREADY_CONNECTED:
            self._metrics.counter("ua_already_connected").value += 1
        its = note.families
        self._metrics.histogram(
            "ua_connection_lifespan_seconds", os=its.os, browser=its.browser
        ).observe(lived_ms / 1000)
        self._log.info(
            "connection.closed",
            uaid=tag(uaid) if uaid is not None else None,
            reason=reason,
            code=code,
            lived_s=lived_ms / 1000,
            existing_uaid=session.known,
            uaid_reset=session.reset,
            connection_type=SIMPLEPUSH if session.simple else WEBPUSH,
            ua_os_family=its.os,
            ua_browser_family=its.browser,
            direct_acked=session.direct_acked,
            direct_storage=session.handed_back,
            stored_retrieved=session.stored_retrieved,
            stored_acked=session.stored_acked,
            nacks=session.nacks,
            registers=session.registers,
            unregisters=session.unregisters,
        )

    # Subscriptions

    def registered(self, uaid: Uaid, channel_id: ChannelId, status: int) -> None:
        self._emit(events.ConnRegister(uah=self._uah(uaid), chh=self._chh(channel_id), code=status))
        self._metrics.counter("ua_command", command="register").value += 1

    def unregistered(self, uaid: Uaid, channel_id: ChannelId, code: int) -> None:
        self._emit(events.ConnUnregister(uah=self._uah(uaid), chh=self._chh(channel_id), code=code))
        detail = str(code) if code in (200, 201, 202) else "other"
        self._metrics.counter("ua_command", command="unregister", detail=detail).value += 1

    # Notifications

    def taken(self, uaid: Uaid, notification: Notification | Update) -> None:
        if not isinstance(notification, Notification):
            if notification.accepted_at_ms:
                mid, uah = self._mid(notification), self._uah(uaid)
                self._emit(events.PushTransmitted(mid=mid, uah=uah, path=DIRECT))
            return
        # No `push.int_accepted` event: here accepting and sending happen together.
        self._sink.defer(self._transmitted_event, uaid, notification)
        topical = notification.topic is not None
        (self._sent_direct_topical if topical else self._sent_direct).value += 1
        data = notification.data
        if data is not None:
            self._bytes_direct.value += len(data)
        if notification.reliability_id is not None:  # only tracked messages record this hop
            self._milestones.note(notification, Milestone.INT_ACCEPTED)
        self._milestones.note(notification, Milestone.TRANSMITTED)

    def _transmitted_event(self, uaid: Uaid, notification: Notification) -> events.PushTransmitted:
        return events.PushTransmitted(mid=self._mid(notification), uah=self._uah(uaid), path=DIRECT)

    def refused(self, uaid: Uaid) -> None:
        self._refusals.value += 1

    def retrieved(
        self, uaid: Uaid, notifications: Sequence[Notification] | Sequence[Update]
    ) -> None:
        uah = self._uah(uaid)
        for notification in notifications:
            if not notification.accepted_at_ms and isinstance(notification, Update):
                continue
            mid = self._mid(notification)
            self._emit(events.PushRetrieved(mid=mid, uah=uah))
            self._emit(events.PushTransmitted(mid=mid, uah=uah, path=STORED))
            if isinstance(notification, Update):
                continue
            self._sent_stored[notification.topic is not None].value += 1
            if notification.data is not None:
                self._bytes_stored.value += len(notification.data)
            self._milestones.note(notification, Milestone.RETRIEVED)

    def looked(self, uaid: Uaid, rows: int, payload_bytes: int, took_s: float) -> None:
        self._emit(
            events.ConnStorageCheck(
                uah=self._uah(uaid), n=rows, size=payload_bytes, dur=int(took_s * 1e6)
            )
        )

    def acked(
        self, uaid: Uaid, notification: Notification | Update, code: int, stored: bool
    ) -> None:
        self._acks.value += 1
        if not isinstance(notification, Notification):
            if notification.accepted_at_ms:
                mid, uah = self._mid(notification), self._uah(uaid)
                self._emit(events.PushDelivered(mid=mid, uah=uah))
            return
        end = _ENDS.get(code, _END_DELIVERED)
        if end is _END_DELIVERED:
            self._sink.defer(self._delivered_event, uaid, notification)
        elif end is Milestone.DECRYPTION_ERROR:
            self._emit(events.PushDecryptionError(mid=self._mid(notification), code=code))
        else:
            self._emit(events.PushNotDelivered(mid=self._mid(notification), code=code))
        if notification.reliability_id is not None and not stored:
            self._milestones.note(notification, Milestone.ACCEPTED)
        self._milestones.note(notification, end)

    def _delivered_event(self, uaid: Uaid, notification: Notification) -> events.PushDelivered:
        return events.PushDelivered(mid=self._mid(notification), uah=self._uah(uaid))

    def dropped_with_channel(self, notification: Notification | Update) -> None:
        # Stored ones end by expiry; for a sent one no other event would record the end.
        if isinstance(notification, Notification) or notification.accepted_at_ms:
            self._emit(events.PushErrored(mid=self._mid(notification), errno=NO_SUBSCRIPTION))

    def nacked(self, uaid: Uaid, version: str, code: int) -> None:
        self._emit(events.ConnNack(uah=self._uah(uaid), code=code))
        self._metrics.counter("ua_command", command="nack", detail=str(code)).value += 1

    def handed_back(self, uaid: Uaid, notifications: Sequence[Notification | Update]) -> None:
        self._emit(events.ConnUnackedStored(uah=self._uah(uaid), n=len(notifications)))
        for notification in notifications:
            if isinstance(notification, Notification):
                topical = notification.topic is not None
                size = len(notification.data or "") * 3 // 4
            elif notification.accepted_at_ms:
                topical, size = False, 0  # its data is not kept
            else:
                continue
            mid, uah = self._mid(notification), self._uah(uaid)
            self._emit(events.PushStored(mid=mid, uah=uah, flag=topical, size=size))

    def hand_back_failed(self, error: WaystationError) -> None:
        if self._failures.is_new("hand back", error):
            self._log.warning("hand_back.waits", reason=str(error) or error.label)

    def superseded(self, replaced: Replaced) -> None:
        if not replaced.expired(self._clock.now_ms()):
            self._emit(events.PushSuperseded(mid=self._mid(replaced)))

    def displaced(self, uaid: Uaid) -> None:
        self._metrics.counter("ua_already_connected").value += 1

    def took_over(self, uaid: Uaid, node_id: str) -> None:
        self._emit(events.ConnDisplaced(uah=self._uah(uaid), peer=self._names.of(node_id)))

    def dropped(self, uaid: Uaid, reason: str) -> None:
        self._emit(events.ConnDropUser(uah=self._uah(uaid), code=_RESETS[reason]))
        self._metrics.counter("ua_expiration", reason=reason).value += 1
        self._log.warning("user_agent.reset", uaid=tag(uaid), reason=reason)

    def _uah(self, uaid: Uaid) -> int:
        return self._hashes.uah(uaid, self._clock.now_ms())

    def _chh(self, channel_id: ChannelId) -> int:
        return self._hashes.chh(channel_id, self._clock.now_ms())

    def _mid(self, notification: Notification | Update | Replaced) -> str:
        return self._hashes.mid(notification.message_id, notification.timestamp_s)


_RESETS = {"too_many_messages": 2, "old_record_version": 3}  # codes of the event contract
