"""The hello of a link: each end sends a key, so that blocks are encrypted inside TLS.

    hello = versions:range session id:shortString key:shortString     padded to 16,512 bytes

Both ends send it at once. It has the id of the TLS session, so it is valid on this connection only;
the keys are made for this link and dropped with it.
"""

from typing import Final

from waystation.queue.errors import BadHelloError, Broker, WeakKeyError
from waystation.queue.model import DhKey, DhPrivateKey, SessionId, VersionRange
from waystation.queue.wire import fields
from waystation.queue.wire.block import ChainedBlocks, chain_keys
from waystation.queue.wire.boxes import agree_raw, new_dh_pair, pad, unpad
from waystation.queue.wire.fields import FieldError, Reader
from waystation.queue.wire.link import LINK_BLOCK_BYTES

VERSIONS: Final = VersionRange(1, 1)


class LinkHandshake:
    """One end's part; `is_server` is the storage server."""

    __slots__ = ("_is_server", "_private", "_public", "_session_id")

    def __init__(self, session_id: SessionId, *, is_server: bool) -> None:
        self._session_id = session_id
        self._is_server = is_server
        self._public: DhKey
        self._private: DhPrivateKey
        self._public, self._private = new_dh_pair()

    def hello(self) -> bytes:
        said = fields.versions(VERSIONS) + fields.short(self._session_id)
        return pad(said + fields.dh_key(self._public), LINK_BLOCK_BYTES)

    def accept(self, block: bytes) -> ChainedBlocks:
        """Decodes the other end's hello; `BadHelloError` ends the link."""
        try:
            reader = Reader(unpad(block))
            versions, session_id, key = reader.versions(), reader.short(), reader.dh_key()
        except FieldError as error:
            raise BadHelloError(Broker.HANDSHAKE_PARSE) from error
        if session_id != self._session_id:
            raise BadHelloError(Broker.TRANSPORT_SESSION)
        if versions.common(VERSIONS) is None:
            raise BadHelloError(Broker.TRANSPORT_VERSION)
        try:
            secret = agree_raw(key, self._private)
        except WeakKeyError as error:
            raise BadHelloError(Broker.HANDSHAKE_BAD_AUTH) from error
        server, client = chain_keys(self._session_id, secret)
        sending, receiving = (server, client) if self._is_server else (client, server)
        return ChainedBlocks(sending, receiving, block_bytes=LINK_BLOCK_BYTES)
