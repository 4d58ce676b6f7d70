"""Verifies the proof of a command against the keys of its queue.

Rule 1: the duration of a check depends on the kind of proof alone. Without a key of that kind, the
        proof is checked against a dummy key.
Rule 2: an authenticator (X25519) is bound to the session's key and to the correlation id, so it
        is valid for one command of one session. No results are cached: a cache would answer
        sooner for queues that exist.

Checks take 30 to 200 µs and release the GIL meanwhile.
"""

import hmac
from collections.abc import Sequence
from typing import Final

import nacl.bindings as sodium
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PublicKey
from nacl.exceptions import BadSignatureError

from waystation.queue.errors import WeakKeyError
from waystation.queue.model import AuthKey, CorrId, DhKey, DhPrivateKey, KeyKind
from waystation.queue.wire.boxes import agree, nonce_of, open_box, seal, sha512
from waystation.queue.wire.fields import FieldError

KIND_BY_PROOF_BYTES: Final = {64: KeyKind.ED25519, 114: KeyKind.ED448, 80: KeyKind.X25519}

# Public keys whose private keys were thrown away. They are valid points, because a check against an
# invalid one would end at once.
DUMMY_KEYS: Final = {
    key.kind: key
    for key in (
        AuthKey(
            KeyKind.ED25519,
            bytes.fromhex("689307a2f74df9c7d3cf8a0d5cc7ea7c1affae12b89056366e686b8da7a619f2"),
        ),
        AuthKey(
            KeyKind.ED448,
            bytes.fromhex(
                "d9c54beed734b3e814fa15936c27dd9638557c5b013998b1f8306280e61b3ca5"
                "040ff8e4803af02f3487dc6ca39c943e5a0dd420fb34563700"
            ),
        ),
        AuthKey(
            KeyKind.X25519,
            bytes.fromhex("e57fe7b4345cc56561054675940dbcb13f1387fcad48ebfc12035727deb86133"),
        ),
    )
}

# A signature for a public key of order 1, 2 or 4 can be forged. libsodium refuses such keys of
# Ed25519, OpenSSL accepts those of Ed448: y is 0, 1 or -1, reduced or not.
_P448: Final = 2**448 - 2**224 - 1
_SMALL_ORDER_ED448: Final = frozenset(
    y.to_bytes(56, "little") + bytes((sign,))
    for y in (0, 1, _P448 - 1, _P448, _P448 + 1)
    for sign in (0, 0x80)
)


def check(
    keys: Sequence[AuthKey],
    proof: bytes,
    authorized: bytes,
    corr_id: CorrId,
    session_key: DhPrivateKey | None,
) -> bool:
    """Whether the proof was made with one of the keys; no keys count as wrong ones."""
    kind = KIND_BY_PROOF_BYTES[len(proof)]
    dummy = DUMMY_KEYS[kind]
    fitting = [key for key in keys if key.kind is kind]
    holds = any(
        _check_one(key, proof, authorized, corr_id, session_key) for key in fitting or (dummy,)
    )
    return holds and bool(fitting)


def _check_one(
    key: AuthKey,
    proof: bytes,
    authorized: bytes,
    corr_id: CorrId,
    session_key: DhPrivateKey | None,
) -> bool:
    match key.kind:
        case KeyKind.ED25519:
            return _signed_ed25519(key.raw, proof, authorized)
        case KeyKind.ED448:
            return _signed_ed448(key.raw, proof, authorized)
        case KeyKind.X25519:
            if session_key is None:
                return False  # before version 7 servers have no session key
            return _authenticated(DhKey(key.raw), proof, authorized, corr_id, session_key)


def _signed_ed25519(key: bytes, proof: bytes, authorized: bytes) -> bool:
    try:
        sodium.crypto_sign_open(proof + authorized, key)
    except BadSignatureError:
        return False
    return True


def _signed_ed448(key: bytes, proof: bytes, authorized: bytes) -> bool:
    try:
        Ed448PublicKey.from_public_bytes(key).verify(proof, authorized)
    except InvalidSignature:
        return False
    return key not in _SMALL_ORDER_ED448


def _authenticated(
    key: DhKey, proof: bytes, authorized: bytes, corr_id: CorrId, session_key: DhPrivateKey
) -> bool:
    try:
        digest = open_box(agree(key, session_key), nonce_of(corr_id), proof)
    except (FieldError, WeakKeyError):
        sha512(authorized)  # takes as long as for a box that decrypts
        return False
    return hmac.compare_digest(digest, sha512(authorized))


def authenticator(key: DhKey, private: DhPrivateKey, corr_id: CorrId, authorized: bytes) -> bytes:
    """Makes the proof of an X25519 key, for tests and tools."""
    return seal(agree(key, private), nonce_of(corr_id), sha512(authorized))
