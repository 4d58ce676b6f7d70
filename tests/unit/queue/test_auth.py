"""Proofs of all three kinds; a refusal takes as long for an unknown queue as for a known one."""

from collections.abc import Callable

import nacl.bindings as sodium
import pytest
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PrivateKey

from waystation.queue import auth
from waystation.queue.model import AuthKey, CorrId, DhKey, DhPrivateKey, KeyKind
from waystation.queue.wire.boxes import new_dh_pair

CORR_ID = CorrId(b"c" * 24)
SAID = b"session, ids and command"
SERVER_KEY, SERVER_PRIVATE = new_dh_pair()

Prover = Callable[[bytes], bytes]


def ed25519() -> tuple[AuthKey, Prover]:
    public, private = sodium.crypto_sign_keypair()
    return AuthKey(KeyKind.ED25519, public), lambda said: sodium.crypto_sign(said, private)[:64]


def ed448() -> tuple[AuthKey, Prover]:
    private = Ed448PrivateKey.generate()
    return AuthKey(KeyKind.ED448, private.public_key().public_bytes_raw()), private.sign


def x25519() -> tuple[AuthKey, Prover]:
    public, private = new_dh_pair()
    return AuthKey(KeyKind.X25519, public), lambda said: auth.authenticator(
        SERVER_KEY, private, CORR_ID, said
    )


KINDS = [ed25519, ed448, x25519]


def check(keys: list[AuthKey], proof: bytes, said: bytes = SAID, corr_id: bytes = CORR_ID) -> bool:
    return auth.check(keys, proof, said, CorrId(corr_id), SERVER_PRIVATE)


@pytest.mark.parametrize("kind", KINDS)
def test_a_proof_of_each_kind(kind: Callable[[], tuple[AuthKey, Prover]]) -> None:
    """Q-047"""
    key, prove = kind()
    other, _ = kind()
    proof = prove(SAID)

    assert check([key], proof)
    assert check([other, key], proof)  # any of the keys of a recipient
    assert not check([other], proof)
    assert not check([], proof)
    assert not check([key], proof, SAID + b".")
    assert not check([key], proof[:-1] + bytes((proof[-1] ^ 1,)))
    assert not check([key], bytes((proof[0] ^ 1,)) + proof[1:])


def test_an_authenticator_is_for_one_command_of_one_session() -> None:
    """Q-046"""
    key, prove = x25519()
    proof = prove(SAID)

    assert check([key], proof)
    assert not check([key], proof, corr_id=b"d" * 24)
    assert not auth.check([key], proof, SAID, CORR_ID, new_dh_pair()[1])
    assert not auth.check([key], proof, SAID, CORR_ID, None)


@pytest.mark.parametrize("length, kind", auth.KIND_BY_PROOF_BYTES.items())
def test_keys_of_another_kind_and_no_keys_cost_a_whole_check(
    length: int, kind: KeyKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Q-110 in its logic: the dummy key of the presented kind is checked, whatever there is."""
    checked: list[AuthKey] = []
    real = auth._check_one

    def spy(key: AuthKey, *rest: object) -> bool:
        checked.append(key)
        return real(key, *rest)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(auth, "_check_one", spy)
    others = [make()[0] for make in KINDS]
    keys = [key for key in others if key.kind is not kind]

    assert not check([], bytes(length))
    assert not check(keys, bytes(length))
    assert checked == [auth.DUMMY_KEYS[kind]] * 2


@pytest.mark.parametrize("kind", KeyKind)
def test_the_dummy_keys_are_good_keys(kind: KeyKind) -> None:
    """A bad one would be refused before the work is done, which is what they are there for."""
    key = auth.DUMMY_KEYS[kind]

    assert key.kind is kind
    match kind:
        case KeyKind.ED25519:
            assert sodium.crypto_core_ed25519_is_valid_point(key.raw)
        case KeyKind.ED448:
            assert len(key.raw) == 57
        case KeyKind.X25519:
            assert len(auth.authenticator(DhKey(key.raw), SERVER_PRIVATE, CORR_ID, SAID)) == 80


@pytest.mark.parametrize(
    "key",
    [
        AuthKey(KeyKind.ED25519, bytes(32)),
        AuthKey(KeyKind.ED25519, b"\xff" * 32),
        AuthKey(KeyKind.ED448, bytes(57)),
        AuthKey(KeyKind.ED448, b"\xff" * 57),
        *(AuthKey(KeyKind.ED448, raw) for raw in sorted(auth._SMALL_ORDER_ED448)),
        AuthKey(KeyKind.X25519, bytes(32)),
    ],
)
def test_a_key_that_is_none_proves_nothing(key: AuthKey) -> None:
    length = {kind: length for length, kind in auth.KIND_BY_PROOF_BYTES.items()}[key.kind]

    for said in (SAID, b"1", b"2", b"3"):  # one in four of them would pass for order 4
        for proof in (bytes(length), key.raw.ljust(length, b"\0")):
            assert not auth.check([key], proof, said, CORR_ID, DhPrivateKey(SERVER_PRIVATE))
