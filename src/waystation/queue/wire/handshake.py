"""The two hellos, and what both ends have agreed on afterwards.

Rule 1: the server sends its hello first. Both hellos are plain blocks; bytes after the known fields
        are ignored, so that later versions can add fields.
Rule 2: a client's key is optional at every version: a short string that is no X25519 key is the
        next field.
Rule 3: blocks are encrypted from version 11 on, if the client gave a key and is not a proxy.
Rule 4: a hello for another server, or with a version that was not offered, closes the connection
        without an answer. A service with an invalid certificate gets one (`services`).
"""

import datetime as dt
from collections.abc import Sequence
from typing import Final

import msgspec

from waystation.queue.errors import BadHelloError, Broker, RefusedError, WeakKeyError
from waystation.queue.model import (
    DhKey,
    DhPrivateKey,
    Fingerprint,
    ServiceRole,
    SessionId,
    VersionRange,
)
from waystation.queue.wire import fields
from waystation.queue.wire.block import (
    Blocks,
    ChainedBlocks,
    PlainBlocks,
    chain_keys,
    open_plain,
    seal_plain,
)
from waystation.queue.wire.boxes import agree_raw, dh_public, new_dh_pair
from waystation.queue.wire.certificates import fingerprint_of, identity_of
from waystation.queue.wire.fields import FieldError, Reader
from waystation.queue.wire.services import ServiceClaim, ServiceHello, claim_of
from waystation.queue.wire.signed_key import SigningKey, sign_key
from waystation.queue.wire.transmission import Dialect

KEYS_SINCE: Final = 7
BLOCKS_ENCRYPTED_SINCE: Final = 11
PROXY_FLAG_SINCE: Final = 14
SERVICES_SINCE: Final = 16
_ROLES: Final = {ord(role.value): role for role in ServiceRole}


class ServerHello(msgspec.Struct, frozen=True, gc=False):
    versions: VersionRange
    session_id: SessionId
    chain: tuple[bytes, ...] = ()
    signed_key: bytes = b""  # empty below version 7


class ClientHello(msgspec.Struct, frozen=True, gc=False):
    version: int
    key_hash: bytes
    key: DhKey | None = None
    is_proxy: bool = False
    service: ServiceHello | None = None


class Agreement(msgspec.Struct, frozen=True):
    """The result of the hellos at one end."""

    dialect: Dialect
    blocks: Blocks
    secret: bytes | None = None  # X25519 of both session keys; None without a client's key
    session_key: DhPrivateKey | None = None  # the server's; authenticators are checked with it
    is_proxy: bool = False
    service: ServiceClaim | None = None


# --- bytes ---------------------------------------------------------------------------------------


def encode_server_hello(hello: ServerHello) -> bytes:
    start = fields.versions(hello.versions) + fields.short(hello.session_id)
    if hello.versions.highest < KEYS_SINCE:
        return start
    return start + fields.larges(hello.chain) + fields.large(hello.signed_key)


def decode_server_hello(content: bytes) -> ServerHello:
    try:
        reader = Reader(content)
        versions, session_id = reader.versions(), SessionId(reader.short())
        if versions.highest < KEYS_SINCE:
            return ServerHello(versions, session_id)
        return ServerHello(versions, session_id, reader.larges(), reader.large())
    except FieldError as error:
        raise BadHelloError(Broker.HANDSHAKE_PARSE) from error


def encode_client_hello(hello: ClientHello) -> bytes:
    out = fields.u16(hello.version) + fields.short(hello.key_hash)
    if hello.version >= KEYS_SINCE and hello.key is not None:
        out += fields.dh_key(hello.key)
    if hello.version >= PROXY_FLAG_SINCE:
        out += fields.flag(hello.is_proxy)
    if hello.version >= SERVICES_SINCE:
        service = hello.service
        out += fields.maybe(
            None
            if service is None
            else service.role.value.encode()
            + fields.larges(service.chain)
            + fields.large(service.signed_key)
        )
    return out


def decode_client_hello(content: bytes) -> ClientHello:
    try:
        reader = Reader(content)
        version, key_hash = reader.u16(), reader.short()
        key = _optional_key(reader) if version >= KEYS_SINCE else None
        is_proxy = reader.flag() if version >= PROXY_FLAG_SINCE else False
        service = None
        if version >= SERVICES_SINCE and reader.maybe():
            role = _ROLES.get(reader.byte())
            if role is None:
                raise FieldError("unknown service role")
            service = ServiceHello(role, reader.larges(), reader.large())
        return ClientHello(version, key_hash, key, is_proxy, service)
    except FieldError as error:
        raise BadHelloError(Broker.HANDSHAKE_PARSE) from error


def _optional_key(reader: Reader) -> DhKey | None:
    at = reader.at
    try:
        return reader.dh_key()
    except FieldError:
        reader.back_to(at)
        return None


# --- the server's side ---------------------------------------------------------------------------


class ServerHandshake:
    """The server's side of one connection's hellos."""

    __slots__ = ("_hello", "_identity", "_private", "services_at_s", "shown")

    def __init__(
        self,
        *,
        versions: VersionRange,
        session_id: SessionId,
        chain: Sequence[bytes],
        leaf_key: SigningKey,
        private: DhPrivateKey | None = None,
        services_at_s: int | None = None,
    ) -> None:
        """`chain` as in TLS, leaf first; `private` only in tests; `services_at_s` is the time at
        which the certificates of services must be valid, None if services are off."""
        self.services_at_s = services_at_s
        self.shown: tuple[bytes, ...] = ()  # the client's chain in TLS
        if private is None:
            public, self._private = new_dh_pair()
        else:
            public, self._private = dh_public(private), private
        self._identity = fingerprint_of(identity_of(chain))
        self._hello = ServerHello(versions, session_id, tuple(chain), sign_key(public, leaf_key))

    def hello(self) -> bytes:
        """The first block of the connection."""
        return seal_plain(encode_server_hello(self._hello))

    def accept(self, block: bytes) -> Agreement:
        """Checks the client's hello. After `BadHelloError` the connection is closed without an
        answer, unless it is a `BadServiceError` (rule 4)."""
        hello = decode_client_hello(_content(block))
        if hello.key_hash != self._identity:
            raise BadHelloError(Broker.HANDSHAKE_IDENTITY)
        if hello.version not in self._hello.versions:
            raise BadHelloError(Broker.TRANSPORT_VERSION)
        service = None
        if hello.service is not None:
            if self.services_at_s is None:
                raise BadHelloError(Broker.HANDSHAKE_BAD_SERVICE)  # TLS asked for no certificate
            now = dt.datetime.fromtimestamp(self.services_at_s, dt.UTC)
            service = claim_of(hello.service, self.shown, now)
        return agreement(
            version=hello.version,
            session_id=self._hello.session_id,
            own=self._private,
            peer=hello.key,
            is_proxy=hello.is_proxy,
            is_server=True,
            service=service,
        )


def agreement(
    *,
    version: int,
    session_id: SessionId,
    own: DhPrivateKey,
    peer: DhKey | None,
    is_proxy: bool,
    is_server: bool,
    service: ServiceClaim | None = None,
) -> Agreement:
    """The result of two hellos, for either end of the connection."""
    dialect = Dialect(version, session_id)
    # A server below version 7 sends no key, so authenticators cannot be checked.
    session_key = own if is_server and version >= KEYS_SINCE else None
    if peer is None:
        return Agreement(dialect, PlainBlocks(), None, session_key, is_proxy, service)
    try:
        secret = agree_raw(peer, own)
    except WeakKeyError as error:
        raise BadHelloError(Broker.HANDSHAKE_BAD_AUTH) from error
    blocks: Blocks = PlainBlocks()
    if version >= BLOCKS_ENCRYPTED_SINCE and not is_proxy:
        server, client = chain_keys(session_id, secret)
        blocks = ChainedBlocks(server, client) if is_server else ChainedBlocks(client, server)
    return Agreement(dialect, blocks, secret, session_key, is_proxy, service)


def _content(block: bytes) -> bytes:
    try:
        return open_plain(block)
    except RefusedError as error:
        raise BadHelloError(Broker.HANDSHAKE_PARSE) from error


def server_hello_of(block: bytes) -> ServerHello:
    """Decodes the first block of a connection, as a client does."""
    return decode_server_hello(_content(block))


def expected_identity(chain: Sequence[bytes]) -> Fingerprint:
    """The key hash that a client sends to the server of this chain."""
    return fingerprint_of(identity_of(chain))
