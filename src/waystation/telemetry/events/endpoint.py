"""Events of app servers' requests."""

from typing import ClassVar

from waystation.telemetry.events.base import Attrs, Event


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
