"""Reports activity of an endpoint node as events and metrics.

Ids appear as keyed hashes only, nodes by name and never by address. `ep.request` is sampled for
successful POSTs, because the events of the message record them: one in `SAMPLE`, with that weight.
Every failed POST is written.
"""

from typing import Final

from waystation.base.clock import Clock
from waystation.base.errors import WaystationError
from waystation.base.limits import BoundedLru
from waystation.push.endpoint.observer import Observer
from waystation.push.errors import VapidError
from waystation.push.model import (
    SIMPLEPUSH,
    TTL_MAX_S,
    WEBPUSH,
    ChannelId,
    Notification,
    Replaced,
    Uaid,
    Update,
)
from waystation.push.node_names import NodeNames
from waystation.push.vapid import Sender
from waystation.push.wire.error_forms import form_of
from waystation.telemetry import events
from waystation.telemetry.hashes import EventHashes
from waystation.telemetry.metrics import Cell, Metrics

NAMES_MAX: Final = 1_024  # cached hashes of senders' `sub`
SAMPLE: Final = 16
TOOK_MAX: Final = 256


class Reports(Observer):
    def __init__(
        self,
        *,
        sink: events.EventSink,
        hashes: EventHashes,
        metrics: Metrics,
        clock: Clock,
        database: str = "",
        names: NodeNames | None = None,
    ) -> None:
        self._sink = sink
        self._hashes = hashes
        self._peer = (names or NodeNames(hashes)).of
        self._metrics = metrics
        self._clock = clock
        self._successes = 0
        self._subs: BoundedLru[str, int] = BoundedLru(NAMES_MAX)
        # Durations not yet in the histogram; added whenever a request is sampled.
        self._took_s: list[float] = []
        count = metrics.counter
        self._received, self._received_tracked = (
            count("notification_received", trackable=tracked) for tracked in ("false", "true")
        )
        self._drafts = {n: count("updates_vapid", draft=f"draft0{n}") for n in (1, 2)}
        self._authorized = count("notification_auth_result", result="ok")
        self._stored = {
            topic: count(
                "notification_message",
                event="stored",
                topic=str(topic).lower(),
                database=database,
            )
            for topic in (False, True)
        }
        self._expired = count("notification_message", event="expired", database=database)
        self._taken_bytes, self._stored_bytes = (
            count("notification_message_data_bytes", destination=where, platform=WEBPUSH)
            for where in ("Direct", "Stored")
        )
        self._encodings: dict[str, Cell] = {
            name: count("updates_notification_encoding", encoding=name)
            for name in ("aesgcm", "aes128gcm")
        }
        self._answers = {
            status: count("notification_direct", status=str(status)) for status in (200, 404, 503)
        }
        self._taken = self._answers[200]
        self._host_gone = count("updates_client_host_gone")
        self._taken_keys = count("notification_key_taken")
        self._unreachable = count("error_node", reason="connect")
        self._request_s = metrics.histogram("notification_request_seconds", platform=WEBPUSH)
        metrics.on_read(self._observe)

    def answered(  # noqa: PLR0917 - called for every POST; keyword arguments would double its cost
        self,
        status: int,
        error: BaseException | None,
        began: float,
        size: int,
        ttl_s: int = 0,
        sender: Sender | None = None,
        channel_id: ChannelId | None = None,
    ) -> None:
        took_s = self._clock.mono() - began
        self._took_s.append(took_s)
        if sender is not None:
            self._drafts[sender.draft].value += 1
        weight = 1
        if error is None:
            self._successes += 1
            if self._successes % SAMPLE:
                return
            weight = SAMPLE
        if len(self._took_s) >= TOOK_MAX:
            self._observe()
        errno = 0 if error is None else form_of(type(error)).errno or 0
        if error is not None:
            label = error.label if isinstance(error, WaystationError) else "bug"
            self._metrics.counter("api_error", label=label).value += 1
            if isinstance(error, VapidError):
                self._metrics.counter("notification_auth_result", result="error").value += 1
                self._sink.emit(events.EpAuthError(errno=errno, app=_app(sender)))
        now_ms = self._clock.now_ms()
        self._sink.emit(
            events.EpRequest(
                code=status,
                errno=errno,
                size=size,
                ttl=ttl_s,
                dur=round(took_s * 1_000_000),
                app=_app(sender),
                chh=None if channel_id is None else self._hashes.chh(channel_id, now_ms),
                attrs=events.EpRequestAttrs(sub=self._sub(sender, now_ms)),
            ),
            weight,
        )

    def _observe(self) -> None:
        self._request_s.observe_all(self._took_s)
        self._took_s.clear()
        self._authorized.value = sum(draft.value for draft in self._drafts.values())

    def received(self, uaid: Uaid, notification: Notification | Update, size: int) -> None:
        if isinstance(notification, Update):
            self._sink.emit(
                events.PushReceived(
                    mid=self._mid(notification),
                    uah=self._uah(uaid),
                    chh=self._hashes.chh(notification.channel_id, notification.accepted_at_ms),
                    ttl=TTL_MAX_S,
                    size=size,
                    via=SIMPLEPUSH,
                )
            )
            return
        self._count_received(notification)
        self._sink.defer(self._received_event, uaid, notification, size, WEBPUSH)

    def received_for_bridge(
        self, uaid: Uaid, notification: Notification, size: int, via: str
    ) -> None:
        self._count_received(notification)
        self._sink.defer(self._received_event, uaid, notification, size, via)

    def _count_received(self, notification: Notification) -> None:
        tracked = notification.reliability_id is not None
        (self._received_tracked if tracked else self._received).value += 1
        if notification.headers is not None:
            self._encodings[notification.headers["encoding"]].value += 1

    def _received_event(
        self, uaid: Uaid, notification: Notification, size: int, via: str
    ) -> events.PushReceived:
        sender, time_ms = notification.sender, notification.accepted_at_ms
        return events.PushReceived(
            mid=self._mid(notification),
            uah=self._hashes.uah(uaid, time_ms),
            chh=self._hashes.chh(notification.channel_id, time_ms),
            ttl=notification.ttl_s,
            size=size,
            via=via,
            app=None if sender is None else int.from_bytes(sender[:8], "big", signed=True),
        )

    def renamed(self, uaid: Uaid, before: Notification, notification: Notification) -> None:
        self._taken_keys.value += 1
        # The earlier id is never sent to anyone, so its life ends here.
        self._sink.emit(events.PushErrored(mid=self._mid(before), errno=0))
        size = len(notification.data or "") * 3 // 4
        self._sink.defer(self._received_event, uaid, notification, size, WEBPUSH)

    def relayed(self, notification: Notification | Update, node_id: str) -> None:
        self._sink.defer(self._relayed_event, notification, node_id)

    def _relayed_event(
        self, notification: Notification | Update, node_id: str
    ) -> events.PushIntTransmitted:
        return events.PushIntTransmitted(mid=self._mid(notification), peer=self._peer(node_id))

    def taken(self, uaid: Uaid, notification: Notification) -> None:
        self._taken.value += 1
        data = notification.data
        if data is not None:
            self._taken_bytes.value += len(data) * 3 // 4  # before base64

    def stored(self, uaid: Uaid, notification: Notification | Update) -> None:
        if isinstance(notification, Update):
            mid, uah = self._mid(notification), self._uah(uaid)
            self._sink.emit(events.PushStored(mid=mid, uah=uah, flag=False, size=0))
            return
        self._stored[notification.topic is not None].value += 1
        if notification.data is not None:
            self._stored_bytes.value += len(notification.data) * 3 // 4
        self._sink.defer(self._stored_event, uaid, notification)

    def _stored_event(self, uaid: Uaid, notification: Notification) -> events.PushStored:
        return events.PushStored(
            mid=self._mid(notification),
            uah=self._uah(uaid),
            flag=notification.topic is not None,
            size=len(notification.data or "") * 3 // 4,  # before base64
        )

    def superseded(self, replaced: Replaced) -> None:
        if not replaced.expired(self._clock.now_ms()):
            self._sink.emit(events.PushSuperseded(mid=self._mid(replaced)))

    def withdrawn(self, notification: Notification) -> None:
        self._sink.emit(events.PushWithdrawn(mid=self._mid(notification)))

    def expired(self, notification: Notification) -> None:
        self._expired.value += 1
        self._sink.emit(events.PushExpired(mid=self._mid(notification)))

    def errored(self, notification: Notification | Update, errno: int) -> None:
        self._sink.emit(events.PushErrored(mid=self._mid(notification), errno=errno))

    def node_busy(self, uaid: Uaid, node_id: str) -> None:
        self._answers[503].value += 1
        self._sink.emit(events.EpNodeBusy(peer=self._peer(node_id), uah=self._uah(uaid)))

    def node_gone(self, uaid: Uaid, node_id: str) -> None:
        self._answers[404].value += 1
        self._sink.emit(events.EpNodeGone(peer=self._peer(node_id), uah=self._uah(uaid)))

    def node_unreachable(self, uaid: Uaid, node_id: str) -> None:
        self._host_gone.value += 1
        self._unreachable.value += 1
        self._sink.emit(events.EpNodeTimeout(peer=self._peer(node_id), uah=self._uah(uaid)))

    def user_agent_dropped(self, uaid: Uaid) -> None:
        self._metrics.counter("updates_drop_user", errno="106").value += 1

    # Bridges

    def bridged(
        self, notification: Notification, via: str, app_id: str, code: int, took_s: float
    ) -> None:
        count = self._metrics.counter
        count("notification_bridge", result="sent", platform=via, app_id=app_id).value += 1
        if notification.data is not None:
            size = len(notification.data) * 3 // 4  # before base64
            count(
                "notification_message_data_bytes",
                destination="Direct",
                platform=via,
                app_id=app_id,
            ).value += size
        mid, dur = self._mid(notification), round(took_s * 1_000_000)
        self._sink.emit(events.BridgeSent(mid=mid, via=via, code=code, dur=dur))
        self._sink.emit(events.PushBridgeTransmitted(mid=mid, via=via, code=code, dur=dur))

    def bridge_failed(
        self, notification: Notification, via: str, app_id: str, error: Exception, took_s: float
    ) -> None:
        reason = error.label if isinstance(error, WaystationError) else "bug"
        self._metrics.counter(
            "notification_bridge", result="error", platform=via, app_id=app_id, reason=reason
        ).value += 1
        self._sink.emit(
            events.BridgeError(
                mid=self._mid(notification),
                via=via,
                code=form_of(type(error)).status,
                dur=round(took_s * 1_000_000),
            )
        )

    def bridge_token_gone(self, uaid: Uaid, via: str) -> None:
        self._sink.emit(events.BridgeTokenGone(uah=self._uah(uaid), via=via))

    def registered(self, uaid: Uaid, via: str) -> None:
        self._sink.emit(events.RegNew(uah=self._uah(uaid), via=via))

    def registration_updated(self, uaid: Uaid, via: str) -> None:
        self._sink.emit(events.RegUpdate(uah=self._uah(uaid), via=via))

    def registration_checked(self, uaid: Uaid, via: str) -> None:
        self._metrics.counter("ua_connection_check").value += 1

    def unregistered(self, uaid: Uaid, via: str) -> None:
        self._sink.emit(events.RegDelete(uah=self._uah(uaid), via=via))

    def channel_added(self, uaid: Uaid, via: str) -> None:
        self._sink.emit(events.RegChannelNew(uah=self._uah(uaid), via=via))

    def channel_removed(self, uaid: Uaid, via: str) -> None:
        self._sink.emit(events.RegChannelDelete(uah=self._uah(uaid), via=via))

    # Hashes and names

    def _mid(self, notification: Notification | Update | Replaced) -> str:
        return self._hashes.mid(notification.message_id, notification.timestamp_s)

    def _uah(self, uaid: Uaid) -> int:
        return self._hashes.uah(uaid, self._clock.now_ms())

    def _sub(self, sender: Sender | None, now_ms: int) -> int | None:
        if sender is None or sender.sub is None:
            return None
        # Cached for an hour, because the key of the hash changes every quarter.
        hour = now_ms // 3_600_000
        known = self._subs.get(sender.sub, hour)
        if known is None:
            known = self._hashes.claim(sender.sub, now_ms)
            self._subs.put(sender.sub, known, hour + 1)
        return known


def _app(sender: Sender | None) -> int | None:
    return None if sender is None else int.from_bytes(sender.key_hash[:8], "big", signed=True)
