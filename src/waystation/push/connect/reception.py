"""The beginning of a connection: let in, TLS established, its request answered or upgraded.

Rule 1: whoever has not upgraded yet counts against `upgrading_max` and has `upgrade_timeout_s`,
        TLS handshake included.
Rule 2: a full node refuses upgrades with 503 and still answers health routes: a load balancer
        must not take it for dead.
Rule 3: a plain request gets one answer, and the connection ends.
"""

import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from waystation.push.connect.carriers import Carrier, PlainCarrier, TlsCarrier
from waystation.push.connect.connection import (
    BLOCKED,
    ENDING,
    SHAKING,
    UPGRADING,
    Connection,
    Ending,
    Shell,
)
from waystation.push.connect.deadlines import Deadlines
from waystation.push.connect.limits import ShellLimits
from waystation.push.wire.upgrade import (
    HttpHead,
    Refusal,
    Upgrade,
    head_length,
    parse_head,
    refusal,
    unanswered,
)

_TLS_BUFFER_BYTES = 65_536  # four records
TICK_S = 0.1  # how late a deadline may be seen
EXPIRIES_MAX = 1024  # deadlines looked at in one turn

Http = Callable[[HttpHead], bytes | None]


class House(Shell, Protocol):
    """What the reception asks of the server."""

    def hold(self, connection: Connection) -> None:
        """Watch its descriptor from now on."""
        ...

    def watch(self, connection: Connection) -> None:
        """Its flags say something new about what to watch for."""
        ...

    def is_full(self) -> bool: ...

    def upgraded(self, connection: Connection, upgrade: Upgrade, rest: bytes) -> None:
        """`rest` came behind the request."""
        ...

    def report(self, what: str, exc: Exception) -> None: ...


class Reception:
    def __init__(self, house: House, plain: PlainCarrier, limits: ShellLimits, http: Http) -> None:
        self._house = house
        self._plain = plain
        self._limits = limits
        self._http = http
        self._tls_buffer = memoryview(bytearray(_TLS_BUFFER_BYTES))
        self._deadlines: Deadlines[Connection] = Deadlines(limits.upgrade_timeout_s, TICK_S)
        self._handshakes = 0  # steps in this turn
        self.present = 0
        self.refused = 0  # ever, by a limit

    @property
    def waiting(self) -> bool:
        return bool(self._deadlines)

    def turn(self) -> None:
        """A new turn of the loop has begun."""
        self._handshakes = 0

    def admit(self, sock: socket.socket, tls: ssl.SSLContext | None, mono: float) -> None:
        if self.present >= self._limits.upgrading_max:
            self.refused += 1
            with sock, suppress(OSError):  # no lingering here: this limit is for a flood
                if tls is None:
                    sock.send(refusal(503, "too many connections").answer)
            return
        carrier: Carrier = self._plain
        flags = UPGRADING
        if tls is None:
            fd = sock.detach()
        else:
            try:
                carrier = TlsCarrier(sock, tls, self._tls_buffer)
            except OSError:
                sock.close()
                return
            fd = carrier.fd
            flags |= SHAKING
        connection = Connection(self._house, carrier, fd, flags)
        self.present += 1
        self._deadlines.add(mono, connection)
        self._house.hold(connection)

    def shake(self, connection: Connection) -> None:
        """The next step of a TLS handshake; its event comes again if this turn has had enough."""
        if self._handshakes >= self._limits.handshakes_max:
            return
        self._handshakes += 1
        carrier = connection.carrier
        assert isinstance(carrier, TlsCarrier)
        try:
            done = carrier.shake()
        except OSError:
            connection.doom(Ending.VANISHED)
            return
        if done:
            connection.flags &= ~SHAKING
        blocked = done is False
        if blocked != bool(connection.flags & BLOCKED):
            connection.flags ^= BLOCKED
            self._house.watch(connection)

    def receive(self, connection: Connection, data: bytes) -> None:
        """Bytes of the request."""
        earlier = connection.partial
        if isinstance(earlier, bytearray):
            earlier += data
            data = bytes(earlier)
        length = head_length(data)
        if not length and len(data) <= self._limits.head_bytes_max:
            if earlier is None:
                connection.partial = bytearray(data)
            return
        connection.partial = None
        if not length or length > self._limits.head_bytes_max:
            self._answer(connection, refusal(431, "request head too long").answer)
            return
        request = parse_head(data[:length])
        match request:
            case Refusal(_, answer):
                self._answer(connection, answer)
            case HttpHead():
                self._answer(connection, self._plain_answer(request))
            case Upgrade():
                if self._house.is_full():
                    self.refused += 1
                    self._answer(connection, refusal(503, "too many connections").answer)
                else:
                    connection.flags &= ~UPGRADING
                    self.present -= 1
                    self._house.upgraded(connection, request, data[length:])

    def expire(self, mono: float) -> None:
        for connection in self._deadlines.expired(mono, EXPIRIES_MAX):
            flags = connection.flags
            if flags & (UPGRADING | ENDING) != UPGRADING:
                continue  # it was in time
            if flags & SHAKING or connection.partial is None:
                connection.doom(Ending.VANISHED)
            else:
                self._answer(connection, refusal(408, "no request in time").answer)

    def _plain_answer(self, request: HttpHead) -> bytes:
        bare = request.method == "HEAD"  # probes use it; it is a GET without the body
        if bare:
            request = HttpHead(method="GET", path=request.path, query=request.query)
        answer = None
        if request.method == "GET":
            try:
                answer = self._http(request)
            except Exception as exc:  # a health check must not take the node down
                self._house.report("answering a plain request", exc)
                answer = refusal(500, "internal error").answer
        if answer is None:
            answer = unanswered(request).answer
        return answer[: head_length(answer)] if bare else answer

    def _answer(self, connection: Connection, answer: bytes) -> None:
        connection.end(Ending.CLOSED, 0, answer)
