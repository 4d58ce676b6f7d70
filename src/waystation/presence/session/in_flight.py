"""Messages on their way to one session, the limits that hold for them, and how many there were."""

from collections import deque
from typing import TYPE_CHECKING, Protocol

import msgspec

from waystation.presence.model import MessageType, Now
from waystation.presence.settings import LADDER_TTL_S

if TYPE_CHECKING:
    from waystation.presence.party.fan_out import FanOut

    from .delivery import Delivery


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """The limits that hold for every session of a node."""

    inflight_max: int = 256
    lag_max: int = 1024
    deliveries_max: int = 5
    ladder_s: tuple[float, ...] = (5.0, 10.0, 20.0, 40.0, 40.0)
    conflations_max: int = 3
    conflation_window_s: float = 60.0

    def ladder_for(self, ttl_s: float) -> tuple[float, ...]:
        """Waits are written for the default TTL; another one scales them."""
        if ttl_s == LADDER_TTL_S:
            return self.ladder_s
        return tuple(wait * ttl_s / LADDER_TTL_S for wait in self.ladder_s)


class SentMessage(msgspec.Struct, frozen=True, gc=False):
    """Something sent. `kind` JOIN is any party message; all who got it at once share it."""

    seq: int
    message_id: int
    data: bytes
    kind: MessageType
    first_mono: float
    last_mono: float
    tries: int = 1  # since the last resume: what the ladder counts
    deliveries: int = 1  # in all: what the wire says

    def misleads(self, acked_high: int, list_seq: int, last_list_id: int) -> bool:
        """Whether sending it again shows a client something that it has left behind."""
        if self.kind is MessageType.JOIN:
            return self.seq < acked_high or self.seq <= list_seq
        if self.kind is MessageType.LIST:
            return self.seq < acked_high or self.message_id != last_list_id
        return False


class DeliveryCounters:
    """Counted over all sessions of a node since its start. Not a struct: there is one, messages
    add to it all the time, and an attribute of a plain object is written in 3 ns instead of 20."""

    __slots__ = (
        "abandoned",
        "acked",
        "acked_again",
        "acked_unknown",
        "dropped",
        "out",
        "redelivered",
        "resyncs",
        "retried",
        "superseded",
    )

    def __init__(self) -> None:
        self.out = 0
        self.acked = 0
        self.acked_again = 0
        self.acked_unknown = 0
        self.retried = 0
        self.dropped = 0
        self.superseded = 0
        self.abandoned = 0  # in flight when their session ended
        self.redelivered = 0
        self.resyncs = 0


class DeliveryPort(Protocol):
    """What a delivery asks of the broker."""

    counters: DeliveryCounters
    fan_out: "FanOut"
    latencies_s: deque[float]
    acks_until_sample: int
    """Counts down; at 0 `acked` is called, which sets it again. 0 from the start: never."""

    def arm_retry(self, delivery: "Delivery", at_mono: float) -> int: ...

    def blocked(self, delivery: "Delivery", mono: float) -> None:
        """The transport takes no more; `unblocked` will tell when it does."""
        ...

    def too_slow(self, delivery: "Delivery", now: Now) -> None: ...

    def acked(self, delivery: "Delivery", sent: SentMessage, mono: float) -> None: ...

    def retried(self, delivery: "Delivery", sent: SentMessage, mono: float) -> None: ...

    def dropped(self, delivery: "Delivery", sent: SentMessage, mono: float) -> None: ...
