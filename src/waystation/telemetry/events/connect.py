"""Events of user agents' connections and registrations."""

from typing import ClassVar

from waystation.telemetry.events.base import Attrs, Event


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
    n: int | None = None  # null where hello does not read the subscriptions, as on most nodes
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
