"""Carriers: read and write bytes of a descriptor, plain or through TLS.

A carrier works on the non-blocking descriptor that the loop's epoll watches: there is no transport,
no memory BIO and no copy between them. The plain carrier has no state, so all plain connections
share one. TLS needs OpenSSL's state for each connection, about 14 KiB.
"""

import os
import select
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol, cast

RECORD_BYTES: Final = 16_384  # largest payload of a TLS record

Bytes = bytes | memoryview


class Carrier(Protocol):
    """Reads and writes one connection. OSError from any call means that the connection is lost."""

    def read(self, fd: int) -> bytes | None:
        """Available bytes; `b""` at the end of the stream, None if there are none yet."""
        ...

    def write(self, fd: int, data: Bytes) -> int:
        """The number of accepted bytes; may be 0."""
        ...

    def finish(self, fd: int) -> None:
        """Shut down the sending side; the peer may still send. Never raises."""
        ...

    def discard(self, fd: int) -> bool:
        """Read and drop input, below TLS. Whether the peer has closed. Never raises."""
        ...

    def close(self, fd: int) -> None: ...

    def peer_address(self, fd: int) -> str:
        """Empty for a unix socket."""
        ...

    def has_left(self, fd: int) -> bool:
        """Whether the peer has closed its side, even if earlier data is not read yet."""
        ...


class SecureCarrier(Carrier, Protocol):
    """A carrier that begins with a handshake.

    `read` requests a whole record, so OpenSSL never keeps decrypted bytes, which epoll cannot see.
    Asking OpenSSL for pending bytes would also release Python's lock each time.
    """

    @property
    def fd(self) -> int: ...

    def shake(self) -> bool | None:
        """True: TLS is established. None: waiting for the peer. False: waiting to write."""
        ...

    @property
    def protocol(self) -> str | None:
        """The protocol negotiated by ALPN."""
        ...

    @property
    def binding(self) -> bytes:
        """The `tls-unique` channel binding: the client's Finished message."""
        ...

    @property
    def peer_chain(self) -> tuple[bytes, ...]:
        """The peer's certificates in DER, its own first; often none."""
        ...


# Takes over the socket. Raises OSError if its peer has gone.
Secure = Callable[[socket.socket], SecureCarrier]
Tls = ssl.SSLContext | Secure


class Descriptor:
    """Queries of a descriptor that are the same for all carriers."""

    __slots__ = ()

    def peer_address(self, fd: int) -> str:
        # The family given here does not matter: the address contains its own.
        handle = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fileno=fd)
        try:
            name = cast("tuple[str, int] | str", handle.getpeername())
        except OSError:
            return ""
        finally:
            handle.detach()
        return name[0] if isinstance(name, tuple) else ""

    def has_left(self, fd: int) -> bool:
        poll = select.poll()
        poll.register(fd, select.POLLRDHUP)
        return bool(poll.poll(0))


class PlainCarrier(Descriptor):
    __slots__ = ("_read_bytes_max",)

    def __init__(self, read_bytes_max: int) -> None:
        # A new bytes object per read is as fast as a shared buffer: it shrinks in place and can be
        # kept without a copy.
        self._read_bytes_max = read_bytes_max

    def read(self, fd: int) -> bytes | None:
        try:
            return os.read(fd, self._read_bytes_max)
        except BlockingIOError:
            return None

    def write(self, fd: int, data: Bytes) -> int:
        try:
            return os.write(fd, data)
        except BlockingIOError:
            return 0

    def finish(self, fd: int) -> None:
        handle = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fileno=fd)
        with suppress(OSError):  # the peer may have been quicker
            handle.shutdown(socket.SHUT_WR)
        handle.detach()

    def discard(self, fd: int) -> bool:
        try:
            return self.read(fd) == b""
        except OSError:
            return True

    def close(self, fd: int) -> None:
        os.close(fd)


class SocketCarrier(Descriptor):
    """Base of TLS carriers; owns its socket."""

    __slots__ = ("_sock",)

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    @property
    def fd(self) -> int:
        return self._sock.fileno()

    def discard(self, fd: int) -> bool:
        try:
            return not socket.socket.recv(self._sock, RECORD_BYTES)
        except (BlockingIOError, ValueError):
            return False
        except OSError:
            return True

    def close(self, fd: int) -> None:
        self._sock.close()


class TlsCarrier(SocketCarrier):
    """TLS by the standard library, as server or as client."""

    __slots__ = ("_tls",)

    _sock: ssl.SSLSocket

    def __init__(
        self, sock: socket.socket, context: ssl.SSLContext, *, server_name: str | None = None
    ) -> None:
        """Take over `sock`; as a client if `server_name` is given (it may be empty)."""
        secure = context.wrap_socket(
            sock,
            server_side=server_name is None,
            do_handshake_on_connect=False,
            server_hostname=server_name or None,
        )
        super().__init__(secure)
        self._tls = inside(secure)

    def shake(self) -> bool | None:
        try:
            self._sock.do_handshake()
        except ssl.SSLWantReadError:
            return None
        except ssl.SSLWantWriteError:
            return False
        return True

    @property
    def protocol(self) -> str | None:
        return self._sock.selected_alpn_protocol()

    @property
    def binding(self) -> bytes:
        binding = self._sock.get_channel_binding("tls-unique")
        assert binding is not None, "only valid after the handshake"
        return binding

    @property
    def peer_chain(self) -> tuple[bytes, ...]:
        shown = self._sock.getpeercert(binary_form=True)
        return () if shown is None else (shown,)

    def read(self, fd: int) -> bytes | None:
        try:
            return self._tls.read(RECORD_BYTES)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None  # half a record, or a key update that is retried with the next one

    def write(self, fd: int, data: Bytes) -> int:
        # OpenSSL accepts one record at a time. After "want write" it must get the same bytes again,
        # so unsent data is only appended to.
        sent, size = 0, len(data)
        try:
            sent = self._tls.write(data)
            while sent < size:
                sent += self._tls.write(memoryview(data)[sent:])
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            pass
        return sent

    def finish(self, fd: int) -> None:
        with suppress(OSError, ValueError):
            self._sock.unwrap()  # sends close_notify, then raises because the peer's is missing
        with suppress(OSError):  # the peer may have been quicker
            self._sock.shutdown(socket.SHUT_WR)


def secure_with(context: ssl.SSLContext) -> Secure:
    """Makes carriers of a server with this context."""
    return lambda sock: TlsCarrier(sock, context)


class _Inside(Protocol):
    """OpenSSL's read and write.

    `SSLSocket` wraps them in Python checks, which cost 0.6 µs of 17 µs for a block there and back.
    If the internal attribute is missing, the wrapped calls are used (`_Checked`).
    """

    def read(self, size: int, /) -> bytes: ...

    def write(self, data: Bytes, /) -> int: ...


class _Checked:
    """The same with the public calls of `SSLSocket`."""

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self._sock = sock

    def read(self, size: int, /) -> bytes:
        return self._sock.recv(size)

    def write(self, data: Bytes, /) -> int:
        return self._sock.send(data)


def inside(sock: ssl.SSLSocket, attribute: str = "_sslobj") -> _Inside:
    """Raises OSError if the peer had closed before its socket was wrapped."""
    try:
        made = cast("_Inside | None", getattr(sock, attribute))
    except AttributeError:
        return _Checked(sock)
    if made is None:
        raise ConnectionResetError("the peer closed before TLS began")
    return made
