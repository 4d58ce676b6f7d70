"""How bytes get in and out of a descriptor: plain, or through TLS on the same descriptor.

Both work on the non-blocking descriptor that the server's epoll watches. The plain carrier has no
state, so all plain connections share one; TLS needs OpenSSL's state for each (about 14 KiB).
"""

import os
import socket
import ssl
from contextlib import suppress
from typing import Protocol


class Carrier(Protocol):
    def read(self, fd: int) -> bytes | None:
        """What is there; `b""` at the end of the stream, None if nothing is there yet.

        Raises OSError when the connection is lost.
        """
        ...

    def write(self, fd: int, data: bytes) -> int:
        """How many bytes the kernel took, 0 if none. Raises OSError when the connection is lost."""
        ...

    def finish(self, fd: int) -> None:
        """Tell the peer that nothing more comes; it may still send."""
        ...

    def close(self, fd: int) -> None: ...


class PlainCarrier:
    __slots__ = ("_read_bytes_max",)

    def __init__(self, read_bytes_max: int) -> None:
        # A new bytes object each time is as quick as a shared buffer (measured: 64 KiB are cut to
        # what was read without moving), and what is read can be kept without a copy.
        self._read_bytes_max = read_bytes_max

    def read(self, fd: int) -> bytes | None:
        try:
            return os.read(fd, self._read_bytes_max)
        except BlockingIOError:
            return None

    def write(self, fd: int, data: bytes) -> int:
        try:
            return os.write(fd, data)
        except BlockingIOError:
            return 0

    def finish(self, fd: int) -> None:
        handle = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fileno=fd)
        with suppress(OSError):  # the peer may have been quicker
            handle.shutdown(socket.SHUT_WR)
        handle.detach()

    def close(self, fd: int) -> None:
        os.close(fd)


class TlsCarrier:
    __slots__ = ("_buffer", "_sock")

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, buffer: memoryview) -> None:
        """Takes over `sock`; `buffer` is shared by all and holds at least one record."""
        self._sock = context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        self._buffer = buffer

    @property
    def fd(self) -> int:
        return self._sock.fileno()

    def shake(self) -> bool | None:
        """True when TLS is established, None while the peer must send, False while we must."""
        try:
            self._sock.do_handshake()
        except ssl.SSLWantReadError:
            return None
        except ssl.SSLWantWriteError:
            return False
        return True

    def read(self, fd: int) -> bytes | None:
        sock, buffer = self._sock, self._buffer
        try:
            size = sock.recv_into(buffer)
            # Bytes that OpenSSL holds already make no descriptor readable: take them all now.
            while (waiting := sock.pending()) and size < len(buffer):
                size += sock.recv_into(buffer[size : size + waiting])
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None  # half a record, or a key update that will be tried again with the next
        return bytes(buffer[:size])

    def write(self, fd: int, data: bytes) -> int:
        try:
            return self._sock.send(data)
        except ssl.SSLWantWriteError:
            # OpenSSL wants to see the same bytes again; ours only grow at the end, as it allows.
            return 0

    def finish(self, fd: int) -> None:
        with suppress(OSError, ValueError):
            self._sock.unwrap()  # sends close_notify, then complains that the peer's is missing
        with suppress(OSError):  # the peer may have been quicker
            self._sock.shutdown(socket.SHUT_WR)

    def close(self, fd: int) -> None:
        self._sock.close()
