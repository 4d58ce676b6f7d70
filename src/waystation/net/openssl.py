"""TLS that requests a client certificate and accepts any, with pyOpenSSL (extra `services`).

The standard library requests a certificate only to verify it against known authorities. This
carrier costs more per record, so only ports that need it use it. The protocol verifies the chain.
"""

import socket
from contextlib import suppress
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.serialization import Encoding
from OpenSSL import SSL

from waystation.net.tls import RECORD_BYTES, Bytes, Secure, SocketCarrier

_LOST: Final = (SSL.Error, ValueError)


def asking(chain_file: Path, key_file: Path, *, protocol: str, suite: str) -> Secure:
    """As a server: TLS 1.3 with one suite and one ALPN protocol, without resumption. OPENSSL_CONF
    is valid for this OpenSSL as well; the suite is set again because it must hold."""
    context = SSL.Context(SSL.TLS_SERVER_METHOD)
    context.set_min_proto_version(SSL.TLS1_3_VERSION)
    context.set_tls13_ciphersuites(suite.encode())
    context.set_session_cache_mode(SSL.SESS_CACHE_OFF)
    context.set_options(SSL.OP_NO_TICKET | SSL.OP_NO_RENEGOTIATION | SSL.OP_NO_COMPRESSION)
    name = protocol.encode()
    context.set_alpn_select_callback(
        lambda _, offered: name if name in offered else SSL.NO_OVERLAPPING_PROTOCOLS
    )
    context.set_verify(SSL.VERIFY_PEER, _take_any)
    context.use_certificate_chain_file(str(chain_file))
    context.use_privatekey_file(str(key_file))
    return lambda sock: AskingCarrier(sock, context)


def _take_any(*_: object) -> bool:
    return True


class AskingCarrier(SocketCarrier):
    """A `SecureCarrier`."""

    __slots__ = ("_tls",)

    def __init__(self, sock: socket.socket, context: SSL.Context) -> None:
        """Takes over `sock`."""
        super().__init__(sock)
        self._tls = SSL.Connection(context, sock)
        self._tls.set_accept_state()

    def shake(self) -> bool | None:
        try:
            self._tls.do_handshake()
        except SSL.WantReadError:
            return None
        except SSL.WantWriteError:
            return False
        except _LOST as exc:
            raise ConnectionAbortedError("the handshake failed") from exc
        return True

    @property
    def protocol(self) -> str | None:
        return self._tls.get_alpn_proto_negotiated().decode() or None

    @property
    def binding(self) -> bytes:
        finished = self._tls.get_peer_finished()
        assert finished is not None, "only valid after the handshake"
        return finished

    @property
    def peer_chain(self) -> tuple[bytes, ...]:
        # On a server, "chain" does not include the leaf.
        leaf = self._tls.get_peer_certificate(as_cryptography=True)
        if leaf is None:
            return ()
        others = self._tls.get_peer_cert_chain(as_cryptography=True) or []
        return tuple(one.public_bytes(Encoding.DER) for one in (leaf, *others))

    def read(self, fd: int) -> bytes | None:
        try:
            return self._tls.recv(RECORD_BYTES)
        except (SSL.WantReadError, SSL.WantWriteError):
            return None
        except SSL.ZeroReturnError:
            return b""
        except _LOST as exc:
            raise ConnectionResetError("the connection was lost") from exc

    def write(self, fd: int, data: Bytes) -> int:
        sent, size = 0, len(data)
        try:
            sent = self._tls.send(data)
            while sent < size:
                sent += self._tls.send(memoryview(data)[sent:])
        except (SSL.WantWriteError, SSL.WantReadError):
            pass
        except _LOST as exc:
            raise ConnectionResetError("the connection was lost") from exc
        return sent

    def finish(self, fd: int) -> None:
        with suppress(*_LOST):
            self._tls.shutdown()
        with suppress(OSError):  # the peer may have closed first
            self._sock.shutdown(socket.SHUT_WR)
