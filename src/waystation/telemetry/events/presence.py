"""Events of parties."""

from typing import ClassVar

from waystation.telemetry.events.base import Attrs, Event


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
