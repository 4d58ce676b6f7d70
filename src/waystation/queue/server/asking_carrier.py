"""TLS that asks clients for a certificate and takes any: services show who they are (§2.8).

The standard library can ask for a certificate only to hold it against authorities that it knows,
and those of services are their own. pyOpenSSL (extra `services`) can, at some cost per block; so
this carries blocks only where `queue.service_certificates` is on. Whether a chain holds is looked
at in the hello that follows (`wire.handshake`), not in TLS.

OPENSSL_CONF speaks to this OpenSSL as well; what it says is said once more, since it must hold.
"""

import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from cryptography.hazmat.primitives.serialization import Encoding
from OpenSSL import SSL

from waystation.queue.identity import Identity
from waystation.queue.model import SessionId
from waystation.queue.server.carrier import ALPN, Carried, Step, skip
from waystation.queue.wire.block import BLOCK_BYTES

_SUITE: Final = b"TLS_CHACHA20_POLY1305_SHA256"
_LOST: Final = (SSL.Error, ValueError)


def asking_tls(identity: Identity) -> Callable[[socket.socket], Carried]:
    """What `BlockServer` makes carriers with."""
    context = SSL.Context(SSL.TLS_SERVER_METHOD)
    context.set_min_proto_version(SSL.TLS1_3_VERSION)
    context.set_tls13_ciphersuites(_SUITE)
    context.set_session_cache_mode(SSL.SESS_CACHE_OFF)
    context.set_options(SSL.OP_NO_TICKET | SSL.OP_NO_RENEGOTIATION | SSL.OP_NO_COMPRESSION)
    name = ALPN.encode()
    context.set_alpn_select_callback(
        lambda _, offered: name if name in offered else SSL.NO_OVERLAPPING_PROTOCOLS
    )
    context.set_verify(SSL.VERIFY_PEER, _take_any)
    context.use_certificate_chain_file(str(identity.chain_file))
    context.use_privatekey_file(str(identity.key_file))
    return lambda sock: AskingCarrier(sock, context)


def _take_any(*_: object) -> bool:
    return True


class AskingCarrier:
    """A `Carried`."""

    __slots__ = ("_partial", "_sock", "_tls")

    def __init__(self, sock: socket.socket, context: SSL.Context) -> None:
        """Takes over `sock`."""
        self._sock = sock
        self._tls = SSL.Connection(context, sock)
        self._tls.set_accept_state()
        self._partial: bytearray | None = None

    @property
    def fd(self) -> int:
        return self._sock.fileno()

    def shake(self) -> Step:
        try:
            self._tls.do_handshake()
        except SSL.WantReadError:
            return Step.READ
        except SSL.WantWriteError:
            return Step.WRITE
        except _LOST as exc:
            raise ConnectionAbortedError("the handshake failed") from exc
        return Step.DONE

    @property
    def has_alpn(self) -> bool:
        return bool(self._tls.get_alpn_proto_negotiated())

    @property
    def session_id(self) -> SessionId:
        finished = self._tls.get_peer_finished()
        assert finished is not None, "asked for after the handshake"
        return SessionId(finished)

    @property
    def peer_chain(self) -> tuple[bytes, ...]:
        # A server's "chain" is everything but the leaf, which is asked for apart.
        leaf = self._tls.get_peer_certificate(as_cryptography=True)
        if leaf is None:
            return ()
        others = self._tls.get_peer_cert_chain(as_cryptography=True) or []
        return tuple(one.public_bytes(Encoding.DER) for one in (leaf, *others))

    def read(self) -> bytes | None:
        partial = self._partial
        try:
            data = self._tls.recv(BLOCK_BYTES if partial is None else BLOCK_BYTES - len(partial))
        except (SSL.WantReadError, SSL.WantWriteError):
            return None
        except SSL.ZeroReturnError:
            return b""
        except _LOST as exc:
            raise ConnectionResetError("lost") from exc
        if len(data) == BLOCK_BYTES:
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
            return self._tls.send(block)
        except (SSL.WantWriteError, SSL.WantReadError):
            return 0
        except _LOST as exc:
            raise ConnectionResetError("lost") from exc

    def finish(self) -> None:
        with suppress(*_LOST):
            self._tls.shutdown()
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def skip(self) -> bool:
        return skip(self._sock)

    def close(self) -> None:
        self._sock.close()
