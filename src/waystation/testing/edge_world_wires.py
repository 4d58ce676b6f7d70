"""Connections of a simulated cluster: real protocols at both ends, and nothing real between them.

Rule 1: bytes of one direction arrive in their order, each after its own time.
Rule 2: a connection may break at any moment; what is under way is lost, and either end hears of it
        when it does, not both at once.
Rule 3: a process that dies says nothing more; the other end learns of it soon, or, if the machine
        vanished, only when somebody notices the silence.
Rule 4: whatever a process does runs in its own context, so that one knows who connects.
"""

import asyncio
import contextvars
import datetime
import random
import ssl
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from waystation.testing.loop import SimClock, SimLoop

OWNER: contextvars.ContextVar[str] = contextvars.ContextVar("OWNER")
VANISHED_S = 15.0
BEHIND_S = 1e-6  # a loop's timers for the same moment have no order
TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # handed around, never used
Accept = Callable[[], asyncio.BaseProtocol]


def context_of(name: str) -> contextvars.Context:
    context = contextvars.copy_context()
    context.run(OWNER.set, name)
    return context


@cache
def _certificate(name: str) -> bytes:
    key = Ed25519PrivateKey.generate()
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    builder = x509.CertificateBuilder(subject, subject, key.public_key(), 1, now, now)
    return builder.sign(key, None).public_bytes(ssl_der())


def ssl_der() -> Any:

    return Encoding.DER


class _Shown:
    """What an end sees of the other's TLS."""

    def __init__(self, name: str, binding: bytes) -> None:
        self._name = name
        self._binding = binding

    def get_channel_binding(self, _: str) -> bytes:
        return self._binding

    def selected_alpn_protocol(self) -> str:
        return "link"

    def getpeercert(self, binary_form: bool = False) -> bytes:
        assert binary_form
        return _certificate(self._name)


class _End(asyncio.Transport):
    """One end of a connection."""

    def __init__(self, wires: "Wires", owner: str, protocol: asyncio.BaseProtocol) -> None:
        super().__init__()
        self.wires = wires
        self.owner = owner
        self.protocol = protocol
        self.other: _End
        self.is_open = True  # from this end's point of view
        self.arrival = 0.0

    # For the protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "ssl_object":
            return _Shown(self.other.owner, b"binding of a simulated session")
        return default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing waits here."""

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return not self.is_open

    def pause_reading(self) -> None:
        """Everybody is read."""

    def resume_reading(self) -> None:
        """See `pause_reading`."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.is_open:
            taken = bytes(data)
            self.wires.carry(self, lambda: self._deliver(taken))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def _deliver(self, data: bytes) -> None:
        other = self.other
        if other.is_open and isinstance(other.protocol, asyncio.Protocol):
            other.protocol.data_received(data)

    def close(self) -> None:
        if self.is_open:
            self.lose()
            self.wires.carry(self, self.other.lose)

    def abort(self) -> None:
        if self.is_open:
            self.lose()
            self.wires.break_end(self.other)

    def lose(self) -> None:
        """This end hears that it is over."""
        if self.is_open:
            self.is_open = False
            self.wires.ends.pop(self, None)
            self.wires.later(0.0, self.owner, lambda: self.protocol.connection_lost(None))


class Wires:
    """All connections, and who accepts more."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.calm = False
        self.listeners: dict[str, Accept] = {}  # by name; hosts are names here
        self.contexts: dict[str, contextvars.Context] = {}
        self.ends: dict[_End, None] = {}
        self._loop = asyncio.get_running_loop()

    def delay_s(self) -> float:
        slow = not self.calm and self.chance.random() < 0.02
        return self.chance.uniform(0.05, 0.6) if slow else self.chance.uniform(0.0005, 0.01)

    def behind(self, arrival: float) -> float:
        """When something arrives that was sent now, behind what arrives then."""
        return max(arrival + BEHIND_S, self._loop.time() + self.delay_s())

    def later(self, delay_s: float, owner: str, call: Callable[[], object]) -> None:
        self._loop.call_later(delay_s, call, context=self.contexts[owner])

    def carry(self, end: _End, call: Callable[[], object]) -> None:
        end.arrival = self.behind(end.arrival)
        self._loop.call_at(end.arrival, call, context=self.contexts[end.other.owner])

    def break_end(self, end: _End, within_s: float = 0.3) -> None:
        """It is over, and this end will hear of it."""
        self.later(self.chance.uniform(0.0, within_s), end.owner, end.lose)

    async def connect(self, make: Accept, host: str) -> tuple[_End, asyncio.BaseProtocol]:
        owner = OWNER.get()
        await asyncio.sleep(self.delay_s())
        accept = self.listeners.get(host)
        if accept is None:
            raise ConnectionRefusedError(host)
        near = _End(self, owner, make())
        far = _End(self, host, self.contexts[host].run(accept))
        near.other, far.other = far, near
        self.ends[near] = self.ends[far] = None
        near.protocol.connection_made(near)
        # Before anything that `near` wrote: that takes time.
        self.contexts[host].run(far.protocol.connection_made, far)
        return near, near.protocol

    # Bad luck

    def cut_one(self) -> None:
        """Some connection breaks."""
        if not self.ends:
            return
        end = self.chance.choice(list(self.ends))
        for one in (end, end.other):
            # Nothing more is carried, though neither has heard of it yet.
            self.break_end(one)

    def died(self, owner: str, *, vanished: bool) -> None:
        """Its process is gone (rule 3)."""
        self.listeners.pop(owner, None)
        for end in [one for one in self.ends if one.owner == owner]:
            end.is_open = False
            del self.ends[end]
            if vanished:
                self.later(VANISHED_S, end.other.owner, end.other.lose)
            else:
                self.break_end(end.other)


class WiredLoop(SimLoop):
    """A loop whose connections are made by `wires`."""

    wires: Wires

    def __init__(self, clock: SimClock, *, until_s: float) -> None:
        super().__init__(clock, until_s=until_s)
        self._kept: set[asyncio.Task[Any]] = set()

    def create_task(self, coro: Any, **how: Any) -> "asyncio.Task[Any]":
        """Kept until it ends: what a dead process waits for has no owner left."""
        task = super().create_task(coro, **how)
        self._kept.add(task)
        task.add_done_callback(self._kept.discard)
        return task

    async def create_connection(  # pyright: ignore[reportIncompatibleMethodOverride] what is used
        self, protocol_factory: Accept, host: str, port: int, **_: Any
    ) -> tuple[_End, asyncio.BaseProtocol]:
        return await self.wires.connect(protocol_factory, host)
