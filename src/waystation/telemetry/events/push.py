"""Events of notifications: milestones and bridges.

The codes of milestones are the states of a message; `contract` has the legal transitions.
"""

from typing import ClassVar

from waystation.telemetry.events.base import Event


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
    size: int | None = None


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


class PushWithdrawn(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 14
    mid: str


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
