"""What happens on an endpoint node, told as events and numbers.

Answers of success are sampled: each message has events of its own, so one `ep.request` stands for
`SAMPLE` of them (its weight says so). Answers of failure are all written.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Final

from waystation.base.clock import Clock
from waystation.base.errors import WaystationError
from waystation.push.endpoint.observer import Observer
from waystation.push.errors import VapidError
from waystation.push.model import WEBPUSH, ChannelId, Notification, Uaid
from waystation.push.vapid import Sender
from waystation.push.wire.error_forms import form_of
from waystation.telemetry import events
from waystation.telemetry.hashes import EventHashes
from waystation.telemetry.metrics import Metrics

SAMPLE: Final = 16


class Reports(Observer):
    def __init__(
        self,
        *,
        sink: events.EventSink,
        hashes: EventHashes,
        metrics: Metrics,
        clock: Clock,
        peer_name: Callable[[str], str],
    ) -> None:
        self._emit = sink.emit
        self._hashes = hashes
        self._metrics = metrics
        self._clock = clock
        self._peer = lru_cache(maxsize=4096)(peer_name)  # node ids are few and come again
        self._successes = 0
        self._received = metrics.counter("notification_received")
        self._request_s = metrics.histogram("notification_request_seconds", platform=WEBPUSH)
        self._direct = metrics.counter("notification_direct", status="200")
        self._stored = {
            topic: metrics.counter("notification_message", event="stored", topic=topic)
            for topic in ("true", "false")
        }
        self._payload = {
            outcome: metrics.counter(
                "notification_message_data_bytes", destination=outcome, platform=WEBPUSH
            )
            for outcome in ("Direct", "Stored")
        }

    def answered(
        self,
        status: int,
        error: BaseException | None,
        *,
        began: float,
        size: int,
        ttl_s: int = 0,
        sender: Sender | None = None,
        channel_id: ChannelId | None = None,
    ) -> None:
        took_s = self._clock.mono() - began
        self._request_s.observe(took_s)
        weight = 1
        if error is None:
            self._successes += 1
            if self._successes % SAMPLE:
                return
            weight = SAMPLE
        errno = 0 if error is None else form_of(type(error)).errno or 0
        now_ms = self._clock.now_ms()
        app = None if sender is None else self._hashes.app(sender.public_key)
        if error is not None:
            label = error.label if isinstance(error, WaystationError) else "general"
            self._metrics.counter("api_error", label=label).value += 1
            if isinstance(error, VapidError):
                self._emit(events.EpAuthError(errno=errno, app=app))
        self._emit(
            events.EpRequest(
                code=status,
                errno=errno,
                size=size,
                ttl=ttl_s,
                dur=int(took_s * 1e6),
                app=app,
                chh=None if channel_id is None else self._hashes.chh(channel_id, now_ms),
                attrs=self._claims(sender, now_ms),
            ),
            weight,
        )

    def _claims(self, sender: Sender | None, now_ms: int) -> events.EpRequestAttrs:
        if sender is None:
            return events.EpRequestAttrs()
        return events.EpRequestAttrs(
            aud=self._hashes.claim(sender.aud, now_ms),
            sub=None if sender.sub is None else self._hashes.claim(sender.sub, now_ms),
        )

    def received(self, uaid: Uaid, notification: Notification, size: int) -> None:
        self._received.value += 1
        sender = notification.sender
        self._emit(
            events.PushReceived(
                mid=self._mid(notification),
                uah=self._uah(uaid),
                chh=self._hashes.chh(notification.channel_id, self._clock.now_ms()),
                ttl=notification.ttl_s,
                size=size,
                via=WEBPUSH,
                # `sender` is the very hash of which `app` is the beginning.
                app=None if sender is None else int.from_bytes(sender[:8], "big", signed=True),
            )
        )

    def relayed(self, notification: Notification, node_id: str) -> None:
        self._emit(events.PushIntTransmitted(mid=self._mid(notification), peer=self._peer(node_id)))

    def taken(self, uaid: Uaid, notification: Notification) -> None:
        self._direct.value += 1
        self._count_payload("Direct", notification)

    def stored(self, uaid: Uaid, notification: Notification) -> None:
        topic = notification.topic is not None
        self._stored["true" if topic else "false"].value += 1
        self._count_payload("Stored", notification)
        self._emit(events.PushStored(mid=self._mid(notification), uah=self._uah(uaid), flag=topic))

    def expired(self, notification: Notification) -> None:
        self._metrics.counter("notification_message", event="expired").value += 1
        self._emit(events.PushExpired(mid=self._mid(notification)))

    def errored(self, notification: Notification, errno: int) -> None:
        self._emit(events.PushErrored(mid=self._mid(notification), errno=errno))

    def node_busy(self, uaid: Uaid, node_id: str) -> None:
        self._metrics.counter("notification_direct", status="503").value += 1
        self._emit(events.EpNodeBusy(peer=self._peer(node_id), uah=self._uah(uaid)))

    def node_gone(self, uaid: Uaid, node_id: str) -> None:
        self._metrics.counter("notification_direct", status="404").value += 1
        self._emit(events.EpNodeGone(peer=self._peer(node_id), uah=self._uah(uaid)))

    def node_unreachable(self, uaid: Uaid, node_id: str) -> None:
        self._metrics.counter("updates_client_host_gone").value += 1
        self._emit(events.EpNodeTimeout(peer=self._peer(node_id), uah=self._uah(uaid)))

    def user_agent_dropped(self, uaid: Uaid) -> None:
        self._metrics.counter("updates_drop_user", errno="106").value += 1
        self._emit(events.ConnDropUser(uah=self._uah(uaid), code=106))

    def _count_payload(self, outcome: str, notification: Notification) -> None:
        if notification.data is not None:
            self._payload[outcome].value += len(notification.data)

    def _uah(self, uaid: Uaid) -> int:
        return self._hashes.uah(uaid, self._clock.now_ms())

    def _mid(self, notification: Notification) -> str:
        return self._hashes.mid(notification.message_id, notification.timestamp_s)
