"""Every event as a frozen struct: what a service hands to its event log.

A field is a column of `contract`; its order is required columns first, then optional ones, and
`attrs` last. An event is made on the message path, so a struct is all it is: encoding, sequence
numbers and the envelope are the event log's business.

Ids enter as keyed hashes only; `EventHashes` makes them.
"""

import hashlib
import ipaddress
from typing import Any, ClassVar, Protocol

import msgspec

from waystation.base.ids import PeriodTagger, Tagger


class Event(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """What all events share; `k` is the code."""

    k: ClassVar[int] = -1


class Attrs(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """What all `attrs` share; written as a JSON object inside one text column."""


class EventSink(Protocol):
    """Where a service leaves its events. Never waits, never raises."""

    def emit(self, event: Event, w: int = 1) -> None:
        """`w` is how many events this one stands for, when its kind is sampled."""
        ...


class NoEvents:
    """For those who do not want any."""

    def emit(self, event: Event, w: int = 1) -> None:
        pass


class RecordedEvents:
    """For tests: keeps what was emitted."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.weights: list[int] = []

    def emit(self, event: Event, w: int = 1) -> None:
        self.events.append(event)
        self.weights.append(w)


# --- milestones of a notification -----------------------------------------------------------


class PushReceived(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 0
    mid: str
    uah: int
    chh: int
    ttl: int
    size: int
    via: str
    app: int | None = None


class PushStored(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 1
    mid: str
    uah: int
    flag: bool


class PushRetrieved(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 2
    mid: str
    uah: int


class PushIntTransmitted(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 3
    mid: str
    peer: str


class PushIntAccepted(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 4
    mid: str
    uah: int


class PushBridgeTransmitted(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 5
    mid: str
    via: str
    code: int
    dur: int


class PushTransmitted(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 6
    mid: str
    uah: int
    path: int


class PushAccepted(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 7
    mid: str
    uah: int


class PushDelivered(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 8
    mid: str
    uah: int


class PushDecryptionError(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 9
    mid: str
    code: int


class PushNotDelivered(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 10
    mid: str
    code: int


class PushExpired(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 11
    mid: str


class PushErrored(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 12
    mid: str
    errno: int


class PushSuperseded(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 13
    mid: str


# --- connections of user agents -------------------------------------------------------------


class ConnOpen(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 20
    cid: int
    iph: int


class ConnHelloAttrs(Attrs, frozen=True, kw_only=True):
    os: str
    browser: str


class ConnHello(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 21
    cid: int
    uah: int
    flag: bool
    n: int
    attrs: ConnHelloAttrs


class ConnHelloReject(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 22
    cid: int
    code: int


class ConnRegister(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 23
    uah: int
    chh: int
    code: int


class ConnUnregister(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 24
    uah: int
    chh: int
    code: int


class ConnBroadcastSub(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 25
    cid: int
    n: int


class ConnPing(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 26
    cid: int
    flag: bool


class ConnStorageCheck(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 27
    uah: int
    n: int
    size: int
    dur: int


class ConnNack(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 28
    uah: int
    code: int
    mid: str | None = None


class ConnClose(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 29
    cid: int
    dur: int
    code: int
    uah: int | None = None


class ConnDisplaced(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 30
    uah: int
    peer: str


class ConnDropUser(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 31
    uah: int
    code: int


class ConnUnackedStored(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 32
    uah: int
    n: int


class ConnUnackedDropped(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 33
    uah: int
    n: int


# --- requests of application servers, bridges, registrations, stores ------------------------


class EpRequestAttrs(Attrs, frozen=True, kw_only=True):
    aud: int | None = None
    sub: int | None = None
    route_us: int | None = None
    validate_us: int | None = None


class EpRequest(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 40
    code: int
    errno: int
    size: int
    ttl: int
    dur: int
    app: int | None = None
    chh: int | None = None
    attrs: EpRequestAttrs


class EpAuthError(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 41
    errno: int
    app: int | None = None


class EpNodeBusy(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 42
    peer: str
    uah: int


class EpNodeGone(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 43
    peer: str
    uah: int


class EpNodeTimeout(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 44
    peer: str
    uah: int


class BridgeSent(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 60
    mid: str
    via: str
    code: int
    dur: int


class BridgeError(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 61
    mid: str
    via: str
    code: int
    dur: int


class BridgeTokenGone(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 62
    uah: int
    via: str


class RegNew(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 70
    uah: int
    via: str


class RegUpdate(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 71
    uah: int
    via: str


class RegDelete(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 72
    uah: int
    via: str


class RegChannelNew(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 73
    uah: int
    via: str


class RegChannelDelete(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 74
    uah: int
    via: str


class StoreStatsAttrs(Attrs, frozen=True, kw_only=True):
    table: str
    op: str


class StoreStats(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 80
    n: int
    size: int
    dur: int
    code: int
    attrs: StoreStatsAttrs


# --- queues, proxies, slots: totals for a slot and 10 s; qh and iph in tests only -----------


class QueueNew(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 100
    slot: int
    code: int
    n: int | None = None
    size: int | None = None
    qh: int | None = None
    iph: int | None = None


class _QueueTotals(Event, frozen=True, kw_only=True):
    slot: int
    n: int | None = None
    size: int | None = None
    code: int | None = None
    qh: int | None = None
    iph: int | None = None


class QueueSub(_QueueTotals, frozen=True, kw_only=True):
    k: ClassVar[int] = 101


class QueueSecure(_QueueTotals, frozen=True, kw_only=True):
    k: ClassVar[int] = 102


class QueueSend(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 103
    slot: int
    size: int
    code: int
    n: int | None = None
    qh: int | None = None
    iph: int | None = None


class QueueDeliver(_QueueTotals, frozen=True, kw_only=True):
    k: ClassVar[int] = 104


class QueueAck(_QueueTotals, frozen=True, kw_only=True):
    k: ClassVar[int] = 105
    dur: int | None = None


class QueueGet(_QueueTotals, frozen=True, kw_only=True):
    k: ClassVar[int] = 106
    flag: bool | None = None


class QueueDelete(_QueueTotals, frozen=True, kw_only=True):
    k: ClassVar[int] = 107


class QueueSuspend(_QueueTotals, frozen=True, kw_only=True):
    k: ClassVar[int] = 108


class QueueExpired(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 109
    slot: int
    n: int
    size: int | None = None


class QueueNotifierNew(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 111
    slot: int
    code: int
    n: int | None = None
    qh: int | None = None
    iph: int | None = None


class QueueNotify(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 112
    slot: int
    code: int
    n: int | None = None
    qh: int | None = None
    iph: int | None = None


class ProxyRoute(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 120
    slot: int
    peer: str
    code: int
    dur: int | None = None
    n: int | None = None
    size: int | None = None


class ProxyRefSet(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 121
    slot: int
    peer: str
    code: int
    n: int | None = None


class ProxyRefGet(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 122
    slot: int
    peer: str
    code: int
    n: int | None = None


class SlotLoadAttrs(Attrs, frozen=True, kw_only=True):
    messages: int
    ops_in: int
    ops_out: int


class SlotLoad(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 130
    slot: int
    n: int
    size: int
    attrs: SlotLoadAttrs


class SlotMoveBegin(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 131
    slot: int
    peer: str
    size: int
    code: int


class SlotMoveEnd(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 132
    slot: int
    peer: str
    size: int
    code: int


# --- parties ----------------------------------------------------------------------------------


class PartySessionStartedAttrs(Attrs, frozen=True, kw_only=True):
    seq: int
    epoch: int
    device_sessions: int
    ttl_ms: int
    auth: bool


class PartySessionStarted(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 200
    party: int
    cli: int
    sess: int
    n: int
    attrs: PartySessionStartedAttrs


class PartySessionLeftAttrs(Attrs, frozen=True, kw_only=True):
    seq: int
    out: int
    acked: int
    retried: int
    dropped: int
    superseded: int
    resumes: int


class PartySessionLeft(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 201
    party: int
    cli: int
    sess: int
    code: int
    dur: int
    attrs: PartySessionLeftAttrs


class PartySessionDetached(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 202
    party: int
    sess: int
    code: int
    n: int


class PartySessionResumedAttrs(Attrs, frozen=True, kw_only=True):
    how: str
    from_node: str | None = None
    resync: bool


class PartySessionResumed(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 203
    party: int
    sess: int
    dur: int
    n: int
    attrs: PartySessionResumedAttrs


class PartySessionMoved(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 204
    party: int
    sess: int
    peer: str
    dur: int


class PartyMessageSentAttrs(Attrs, frozen=True, kw_only=True):
    type: str
    seq: int


class PartyMessageSent(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 205
    party: int
    msg: int
    n: int
    size: int
    sess: int | None = None
    attrs: PartyMessageSentAttrs


class PartyMessageRetried(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 206
    party: int
    sess: int
    msg: int
    n: int
    dur: int
    code: int


class PartyMessageAcked(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 207
    party: int
    sess: int
    msg: int
    n: int
    dur: int


class PartyDeliveryTotalsAttrs(Attrs, frozen=True, kw_only=True, gc=True):
    """out = acked + dropped + superseded + outstanding."""

    out: int
    acked: int
    dropped: int
    superseded: int
    outstanding: int
    retried: int
    redelivered: int
    latency_us: dict[str, int] | None = None


class PartyDeliveryTotals(Event, frozen=True, kw_only=True, gc=True):
    k: ClassVar[int] = 208
    attrs: PartyDeliveryTotalsAttrs


class PartyMessageDropped(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 209
    party: int
    sess: int
    msg: int
    n: int
    dur: int
    code: int


class PartyRefusedAttrs(Attrs, frozen=True, kw_only=True):
    what: str


class PartyRefused(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 210
    code: int
    attrs: PartyRefusedAttrs


class PartyOpened(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 211
    party: int
    n: int | None = None
    dur: int | None = None


class PartyClosed(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 212
    party: int
    n: int
    dur: int


class PartyNodeStateAttrs(Attrs, frozen=True, kw_only=True):
    state: str
    reason: str | None = None


class PartyNodeState(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 213
    n: int
    attrs: PartyNodeStateAttrs


# --- the node itself --------------------------------------------------------------------------


class NodeStartAttrs(Attrs, frozen=True, kw_only=True):
    version: str


class NodeStart(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 300
    attrs: NodeStartAttrs


class NodeStop(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 301
    code: int


class NodeStatsAttrs(Attrs, frozen=True, kw_only=True, gc=True):
    connections: int
    rss: int
    cpu: float
    loop_lag: float
    spool_bytes: int
    counters: dict[str, int]


class NodeStats(Event, frozen=True, kw_only=True, gc=True):
    k: ClassVar[int] = 302
    attrs: NodeStatsAttrs


class LogGap(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 303
    n: int


def _leaves(cls: type[Event]) -> list[type[Event]]:
    return [cls] * (cls.k >= 0) + [
        leaf for child in cls.__subclasses__() for leaf in _leaves(child)
    ]


EVENT_TYPES: dict[int, type[Event]] = {cls.k: cls for cls in _leaves(Event)}


# --- ids as they may be written ---------------------------------------------------------------


def mid(key: Tagger, version: str, time_s: int) -> str:
    """A message's tracking id: 48 bits of its time, 80 bits of a keyed hash of its version.

    Each node computes it from what relay and store carry anyway, so it never travels. It sorts
    by time like a UUIDv7 and is none.
    """
    return f"{time_s * 1000:012x}{key.digest(version.encode())[:10].hex()}"


class EventHashes:
    """The keyed hashes of one cluster: a key for each purpose and calendar quarter.

    `time_ms` is the event's time; of `mid`, the notification's, so that every node agrees.
    """

    def __init__(self, master: bytes) -> None:
        self._uaid = PeriodTagger(master, "uaid")
        self._channel = PeriodTagger(master, "channel")
        self._message = PeriodTagger(master, "message")
        self._address = PeriodTagger(master, "address")
        self._claim = PeriodTagger(master, "claim")
        self._presence = PeriodTagger(master, "presence")
        self._queue = PeriodTagger(master, "queue")

    def uah(self, uaid: bytes, time_ms: int) -> int:
        return self._uaid.at(time_ms).hash64(uaid)

    def chh(self, channel_id: bytes, time_ms: int) -> int:
        return self._channel.at(time_ms).hash64(channel_id)

    def qh(self, recipient_id: bytes, time_ms: int) -> int:
        return self._queue.at(time_ms).hash64(recipient_id)

    def presence(self, raw: bytes, time_ms: int) -> int:
        """For `party`, `cli` and `sess`."""
        return self._presence.at(time_ms).hash64(raw)

    def claim(self, text: str, time_ms: int) -> int:
        """For a token's `aud` and `sub`."""
        return self._claim.at(time_ms).hash64(text.encode())

    def iph(self, address: str, time_ms: int) -> int:
        """Of the /24 or /48 an address lies in; of the text itself when it is no address."""
        return self._address.at(time_ms).hash64(_prefix(address))

    def mid(self, version: str, time_s: int) -> str:
        return mid(self._message.at(time_s * 1000), version, time_s)

    @staticmethod
    def app(public_key: bytes) -> int:
        """Of a VAPID public key as an uncompressed point. Not keyed: the key is public."""
        return int.from_bytes(hashlib.sha256(public_key).digest()[:8], "big", signed=True)


def _prefix(address: str) -> bytes:
    try:
        parsed: Any = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address.encode()
    if parsed.version == 6 and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    return parsed.packed[:3] if parsed.version == 4 else parsed.packed[:6]
