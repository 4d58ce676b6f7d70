"""TLS on a raw socket: whole blocks in, whole blocks out (§2.1 to §2.4).

`ssl.SSLSocket` works directly on the descriptor that the server's epoll watches; there is no
transport, no memory BIO and no copy between them. A block is exactly the largest TLS record, so
one call usually moves one block. Only a block that came in part is kept.

What TLS may be (1.3, ChaCha20, X448 and X25519) stands in `openssl.cnf`, which `OPENSSL_CONF` must
name before the process starts: Python has no call for it.
"""

import enum
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol, cast

from waystation.base.settings import SettingsError
from waystation.queue.identity import Identity
from waystation.queue.model import SessionId
from waystation.queue.wire.block import BLOCK_BYTES

ALPN: Final = "smp/1"
OPENSSL_CONF: Final = Path(__file__).with_name("openssl.cnf")
_SUITE: Final = "TLS_CHACHA20_POLY1305_SHA256"


def tls_context(identity: Identity) -> ssl.SSLContext:
    """Raises `SettingsError` if OpenSSL was not told what this protocol needs."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    suites = [suite["name"] for suite in context.get_ciphers() if suite["protocol"] == "TLSv1.3"]
    if suites != [_SUITE]:
        raise SettingsError(
            [
                f"TLS of the queue service needs OPENSSL_CONF={OPENSSL_CONF} in the environment"
                " of its process; `waystation serve` sets it"
            ]
        )
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # a resumed session would have another session id (§2.3)
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.set_alpn_protocols([ALPN])
    context.load_cert_chain(identity.chain_file, identity.key_file)
    return context


class Step(enum.Enum):
    """How far a handshake is."""

    DONE = "done"
    READ = "the peer must send"
    WRITE = "we must send"


class Carried(Protocol):
    """One connection's TLS, as the shell uses it: this module's, or `asking_carrier`'s."""

    @property
    def fd(self) -> int: ...

    def shake(self) -> Step:
        """Raises OSError when it fails."""
        ...

    @property
    def has_alpn(self) -> bool: ...

    @property
    def session_id(self) -> SessionId:
        """The client's Finished message, the same on both sides."""
        ...

    @property
    def peer_chain(self) -> tuple[bytes, ...]:
        """What the client has shown, leaf first; usually nothing."""
        ...

    def read(self) -> bytes | None:
        """A whole block, `b""` at the end of the stream, or None if there is none yet.

        Raises OSError when the connection is lost.
        """
        ...

    @property
    def holds_more(self) -> bool:
        """Whether OpenSSL has bytes already, of which no descriptor tells."""
        ...

    def write(self, block: bytes) -> int:
        """How many bytes went, 0 if none. Raises OSError when the connection is lost."""
        ...

    def finish(self) -> None:
        """Tell the peer that nothing more comes."""
        ...

    def skip(self) -> bool:
        """Throw away what still comes in, below TLS; whether the peer has closed."""
        ...

    def close(self) -> None: ...


Carry = Callable[[socket.socket], Carried]  # takes over the socket; raises OSError if it is gone


class _Tls(Protocol):
    """What OpenSSL does.

    `SSLSocket` has it inside, and makes checks around each call in Python: 0.6 µs for a block
    there and back, of 17 µs in all; memory BIOs, the other public way, cost 1.5 µs more. That is
    the difference between meeting the bar of 0.9 × uvloop's TLS and missing it, so we reach
    inside; where there is no such attribute, `_Checked` takes the public way.
    """

    def read(self, size: int, /) -> bytes:
        """Into bytes of its own: a buffer of ours would be copied once more, 2 % of a pair."""
        ...

    def write(self, data: bytes, /) -> int: ...

    def pending(self) -> int: ...


class _Checked:
    """The same by what `SSLSocket` promises."""

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self._sock = sock

    def read(self, size: int, /) -> bytes:
        return self._sock.recv(size)

    def write(self, data: bytes, /) -> int:
        return self._sock.send(data)

    def pending(self) -> int:
        return self._sock.pending()


def reached(sock: ssl.SSLSocket, attribute: str = "_sslobj") -> _Tls:
    """The quickest way to the TLS of this socket. Raises OSError if it has none: the peer was
    gone before we looked."""
    try:
        made = cast("_Tls | None", getattr(sock, attribute))
    except AttributeError:
        return _Checked(sock)
    if made is None:
        raise ConnectionResetError("gone before it was looked at")
    return made


class Carrier:
    """A `Carried`."""

    __slots__ = ("_partial", "_sock", "_tls")

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        """Takes over `sock`."""
        self._sock = context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        self._tls = reached(self._sock)
        self._partial: bytearray | None = None

    @property
    def fd(self) -> int:
        return self._sock.fileno()

    def shake(self) -> Step:
        try:
            self._sock.do_handshake()
        except ssl.SSLWantReadError:
            return Step.READ
        except ssl.SSLWantWriteError:
            return Step.WRITE
        return Step.DONE

    @property
    def has_alpn(self) -> bool:
        return self._sock.selected_alpn_protocol() is not None

    @property
    def session_id(self) -> SessionId:
        binding = self._sock.get_channel_binding("tls-unique")
        assert binding is not None, "asked for after the handshake"
        return SessionId(binding)

    @property
    def peer_chain(self) -> tuple[bytes, ...]:
        return ()  # we have asked for none

    def read(self) -> bytes | None:
        partial = self._partial
        try:
            data = self._tls.read(BLOCK_BYTES if partial is None else BLOCK_BYTES - len(partial))
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None
        if len(data) == BLOCK_BYTES or not data:
            return data
        if partial is None:
            self._partial = bytearray(data)
            return None
        partial += data
        if len(partial) < BLOCK_BYTES:
            return None
        self._partial = None
        return bytes(partial)

    @property
    def holds_more(self) -> bool:
        return bool(self._tls.pending())

    def write(self, block: bytes) -> int:
        try:
            return self._tls.write(block)
        except ssl.SSLWantWriteError:
            return 0  # OpenSSL wants to see the same bytes again, and will
        except ssl.SSLWantReadError:
            return 0

    def finish(self) -> None:
        with suppress(OSError, ValueError):
            self._sock.unwrap()  # sends close_notify, then complains that the peer's is missing
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def skip(self) -> bool:
        return skip(self._sock)

    def close(self) -> None:
        self._sock.close()


def skip(sock: socket.socket) -> bool:
    """`Carried.skip`."""
    try:
        return not socket.socket.recv(sock, BLOCK_BYTES)
    except (BlockingIOError, ValueError):
        return False
    except OSError:
        return True


def carry_with(tls: ssl.SSLContext) -> Carry:
    return lambda sock: Carrier(sock, tls)
