"""Listening sockets in the worker's epoll: who comes in, and when the door stays shut for a moment.

Several workers share a port: each has a socket of its own with SO_REUSEPORT, and the kernel deals
new connections out among them.
"""

import asyncio
import errno
import select
import socket
import ssl
from collections.abc import Callable

_PAUSE_S = 0.2  # when descriptors or memory ran out
_OUT_OF_RESOURCES = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
_LAST_ROUNDS_MAX = 64

Admit = Callable[[socket.socket, ssl.SSLContext | None], None]


class _Listener:
    __slots__ = ("sock", "tls")

    def __init__(self, sock: socket.socket, tls: ssl.SSLContext | None) -> None:
        self.sock = sock
        self.tls = tls


class Listeners:
    """Hands each new connection to `admit`, non-blocking, with its listener's TLS context."""

    def __init__(
        self,
        epoll: select.epoll,
        loop: asyncio.AbstractEventLoop,
        admit: Admit,
        *,
        accepts_max: int,
    ) -> None:
        self._epoll = epoll
        self._loop = loop
        self._admit = admit
        self._accepts_max = accepts_max
        self._by_fd: dict[int, _Listener] = {}

    def add(self, sock: socket.socket, tls: ssl.SSLContext | None) -> None:
        sock.setblocking(False)
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            # Accepted sockets inherit it on Linux, which saves a system call for each.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.listen(socket.SOMAXCONN)
        self._by_fd[sock.fileno()] = _Listener(sock, tls)
        self._epoll.register(sock.fileno(), select.EPOLLIN)

    def use_certificate(self, tls: ssl.SSLContext) -> None:
        for listener in self._by_fd.values():
            if listener.tls is not None:
                listener.tls = tls

    def accept(self, fd: int) -> bool:
        """Take in at most `accepts_max`; whether there may be more."""
        listener = self._by_fd.get(fd)
        if listener is None:
            return False  # an event of a descriptor that is gone
        for _ in range(self._accepts_max):
            try:
                sock, _address = listener.sock.accept()
            except BlockingIOError:
                return False
            except OSError as exc:
                if exc.errno in _OUT_OF_RESOURCES:
                    # The listener stays readable: without a pause the loop would spin.
                    self._epoll.modify(fd, 0)
                    self._loop.call_later(_PAUSE_S, self._watch_again, listener)
                    return False
                continue  # this one was gone before we looked
            sock.setblocking(False)
            self._admit(sock, listener.tls)
        return True

    def _watch_again(self, listener: _Listener) -> None:
        fd = listener.sock.fileno()
        if self._by_fd.get(fd) is listener:
            self._epoll.modify(fd, select.EPOLLIN)

    def stop(self) -> None:
        """Close the sockets, but take in those who wait: the kernel would reset them."""
        for fd in self._by_fd:
            for _ in range(_LAST_ROUNDS_MAX):
                if not self.accept(fd):
                    break
        self.close()

    def close(self) -> None:
        for listener in self._by_fd.values():
            listener.sock.close()  # which takes it out of epoll as well
        self._by_fd.clear()


def bound_socket(host: str, port: int, *, reuse_port: bool = True) -> socket.socket:
    """One for each worker, all on the same port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((host, port))
    except BaseException:
        sock.close()
        raise
    return sock
