"""Encrypts commands for a relay, so that the proxy sees neither queue nor text.

Rule 1: each command has a new key pair and a new correlation id, so two cannot be linked.
Rule 2: the answer has the same key, and the nonce with its bytes reversed.
"""

import secrets
from datetime import datetime

import msgspec

from .address import ServerAddress
from .answers import Answer, RelaySession
from .boxes import NONCE_BYTES, box_key, seal_padded, unseal_padded
from .commands import VERSION_MAX, VERSION_MIN, Command, Forward, OpenRelay, encode_command
from .encoding import BadBytesError
from .hello import check_chain, common_version
from .keys import PrivateKey
from .transmission import decode_batch, decode_reply, encode_batch, encode_transmission

FORWARDED_BYTES = 16_226


class Parcel(msgspec.Struct, frozen=True):
    """An encrypted command, and the key for its answer."""

    corr_id: bytes
    entity_id: bytes
    command: Forward
    box_key: bytes


def relay_request(server: ServerAddress, password: str = "") -> OpenRelay:
    """`password` is the proxy's."""
    return OpenRelay(
        tuple(host.strip("[]") for host in server.hosts),
        str(server.port),
        server.fingerprint,
        password.encode() if password else None,
    )


class Forwarding:
    """One proxy's session with one relay, for our commands."""

    def __init__(self, session: RelaySession, server: ServerAddress, now: datetime) -> None:
        self.session_id = session.session_id
        self.version = common_version(
            session.version_min, session.version_max, (VERSION_MIN, VERSION_MAX)
        )
        self._server_key = check_chain(
            session.chain, session.signed_key, fingerprint=server.fingerprint, now=now
        )

    def pack(self, command: Command, *, entity_id: bytes, key: PrivateKey | None) -> Parcel:
        corr_id = secrets.token_bytes(NONCE_BYTES)
        transmission = encode_transmission(
            encode_command(command, self.version),
            version=self.version,
            session_id=self.session_id,
            corr_id=corr_id,
            entity_id=entity_id,
            key=key,
            server_key=self._server_key,
        )
        once = PrivateKey.generate("x25519")
        derived = box_key(self._server_key, once.seed)
        sealed = seal_padded(derived, corr_id, encode_batch([transmission]), FORWARDED_BYTES)
        return Parcel(corr_id, entity_id, Forward(self.version, once.public, sealed), derived)

    def unpack(self, sealed: bytes, parcel: Parcel) -> Answer:
        content = unseal_padded(parcel.box_key, parcel.corr_id[::-1], sealed)
        parts = decode_batch(content)
        if len(parts) != 1:
            raise BadBytesError("a relay must answer one command with one answer")
        reply = decode_reply(parts[0], version=self.version, session_id=self.session_id)
        if reply.corr_id != parcel.corr_id or reply.entity_id not in (parcel.entity_id, b""):
            raise BadBytesError("a relay's answer to another command")
        return reply.answer
