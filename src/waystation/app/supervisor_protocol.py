"""Messages between the supervisor and a worker: JSON lines over one socket pair per worker.

The supervisor sends one `Order`. The worker answers `Ready` once all its ports accept connections,
or `Failed` with a sentence and an exit code; after `Ready` it sends `Alive` regularly (see
`watchdog`). A closed socket means that the other process has ended; a worker then ends as well.
"""

import contextlib
import ctypes
import os
import signal
import socket
import sys
from typing import Literal

import msgspec

from .roles import Role

LINE_MAX_BYTES = 1 << 20
PR_SET_PDEATHSIG = 1

WorkerKind = Literal["push", "queue", "edge", "presence", "controller", "console"]
Service = Literal["serve", "autoconnect", "autoendpoint"]


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """The roles, index and settings that a worker process runs with."""

    kind: WorkerKind
    service: Service
    index: int
    count: int
    roles: tuple[Role, ...]
    supervisor_pid: int
    part: int = 1  # of the data directory
    settings: msgspec.Raw = msgspec.Raw(b"null")  # see settings.encode_settings


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """All ports of this worker accept connections."""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """This worker cannot start; `reason` is shown to the operator."""

    reason: str
    exit_code: int


class Alive(msgspec.Struct, frozen=True, tag="alive"):
    """The event loop of this worker runs."""


Report = Ready | Failed | Alive

_orders = msgspec.json.Decoder(Order)
_reports: msgspec.json.Decoder[Report] = msgspec.json.Decoder(Report)


def encode_line(message: Order | Report) -> bytes:
    line = msgspec.json.encode(message) + b"\n"
    assert len(line) <= LINE_MAX_BYTES
    return line


def decode_report(line: bytes) -> Report:
    return _reports.decode(line)


class SupervisorLine:
    """The worker's end of the socket pair."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    @classmethod
    def inherited(cls, fd: int) -> "SupervisorLine":
        sock = socket.socket(fileno=fd)
        sock.set_inheritable(False)
        return cls(sock)

    def fileno(self) -> int:
        return self._sock.fileno()

    def receive_order(self) -> Order:
        line = bytearray()
        while not line.endswith(b"\n"):
            part = self._sock.recv(65_536)
            if not part:
                raise EOFError("the supervisor ended before it gave an order")
            line += part
            assert len(line) <= LINE_MAX_BYTES
        return _orders.decode(line)

    def report(self, report: Report) -> None:
        with contextlib.suppress(OSError):  # the supervisor has ended: `ended` tells
            self._sock.sendall(encode_line(report))

    def beat(self) -> None:
        """Send `Alive` without waiting, even if the supervisor does not read."""
        with contextlib.suppress(OSError):
            self._sock.send(encode_line(Alive()), socket.MSG_DONTWAIT)

    def ended(self) -> bool:
        """Whether the supervisor has ended. Call when the socket is readable: the supervisor sends
        nothing after the order."""
        try:
            return not self._sock.recv(4096)
        except BlockingIOError:
            return False
        except OSError:
            return True


def end_with_parent(supervisor_pid: int) -> None:
    """Have the kernel send SIGTERM when the supervisor ends; exit if it already has."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != supervisor_pid:  # it ended before the line above took hold
        raise SystemExit(0)
