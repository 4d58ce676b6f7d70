"""Signatures: what AWS-LC says of them is held against OpenSSL, which `cryptography` brings."""

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import (
    decode_dss_signature,
    encode_dss_signature,
)
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import example, given
from hypothesis import strategies as st

from waystation.push import p256

ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
PRIME = 0xFFFFFFFF00000001000000000000000000000000FFFFFFFFFFFFFFFFFFFFFFFF

secrets = st.integers(1, ORDER - 1)


def point_of(private: ec.EllipticCurvePrivateKey) -> bytes:
    return private.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)


def signature_of(private: ec.EllipticCurvePrivateKey, message: bytes) -> tuple[int, int]:
    return decode_dss_signature(private.sign(message, ec.ECDSA(SHA256())))


def jose(r: int, s: int) -> bytes:
    return r.to_bytes(32) + s.to_bytes(32)


def openssl_accepts(private: ec.EllipticCurvePrivateKey, r: int, s: int, message: bytes) -> bool:
    try:
        private.public_key().verify(encode_dss_signature(r, s), message, ec.ECDSA(SHA256()))
    except InvalidSignature:
        return False
    return True


class TestSignatures:
    @given(secrets, st.binary(max_size=300))
    def test_what_the_owner_signed_is_accepted_in_both_its_forms(
        self, secret: int, message: bytes
    ) -> None:
        """(r, n - s) is as good a signature as (r, s): some signers give one, some the other."""
        private = ec.derive_private_key(secret, ec.SECP256R1())
        key = p256.PublicKey(point_of(private))
        r, s = signature_of(private, message)

        assert key.signed(message, jose(r, s))
        assert key.signed(message, jose(r, ORDER - s))

    @given(secrets, st.binary(min_size=1, max_size=300), st.integers(0, 64 * 8 - 1))
    def test_a_bit_changed_anywhere_is_refused(self, secret: int, message: bytes, bit: int) -> None:
        private = ec.derive_private_key(secret, ec.SECP256R1())
        key = p256.PublicKey(point_of(private))
        signature = bytearray(jose(*signature_of(private, message)))
        signature[bit // 8] ^= 1 << bit % 8
        other = bytearray(message)
        other[bit % len(other)] ^= 1

        assert not key.signed(message, bytes(signature))
        assert not key.signed(bytes(other), jose(*signature_of(private, message)))

    @given(
        st.one_of(st.sampled_from([0, 1, ORDER - 1, ORDER, ORDER + 1, PRIME, 2**256 - 1]), secrets),
        st.one_of(st.sampled_from([0, 1, ORDER - 1, ORDER, ORDER + 1, PRIME, 2**256 - 1]), secrets),
    )
    @example(0, 0)
    @example(ORDER, ORDER)
    def test_numbers_at_the_edges_are_judged_as_openssl_judges_them(self, r: int, s: int) -> None:
        private = ec.derive_private_key(7, ec.SECP256R1())
        key = p256.PublicKey(point_of(private))

        assert key.signed(b"m", jose(r, s)) == openssl_accepts(private, r, s, b"m")


class TestKeys:
    @pytest.mark.parametrize(
        "point",
        [
            b"\x04" + bytes(64),
            b"\x04" + b"\xff" * 64,
            b"\x04" + bytes(range(64)),
            b"\x04" + PRIME.to_bytes(32) + bytes(32),
            b"\x02" + point_of(ec.derive_private_key(7, ec.SECP256R1()))[1:33] + bytes(32),
        ],
        ids=["zero", "ones", "off the curve", "beyond the field", "compressed"],
    )
    def test_what_is_no_point_of_the_curve_is_no_key(self, point: bytes) -> None:
        with pytest.raises(ValueError, match="not a point"):
            p256.PublicKey(point)

    @pytest.mark.parametrize("length", [0, 33, 64, 66])
    def test_a_key_has_65_bytes(self, length: int) -> None:
        with pytest.raises(ValueError, match="has 65 bytes"):
            p256.PublicKey(b"\x04" * length)

    def test_the_order_of_bytes_is_that_of_the_rest_of_the_world(self) -> None:
        """RFC 6979, A.2.5: the key and its signature of "sample" with SHA-256."""
        x = 0x60FED4BA255A9D31C961EB74C6356D68C049B8923B61FA6CE669622E60F29FB6
        y = 0x7903FE1008B8BC99A41AE9E95628BC64F2F1B20C2D7E9F5177A3C294D4462299
        r = 0xEFD48B2AACB6A8FD1140DD9CD45E81D69D2C877B56AAF991C34D0EA84EAF3716
        s = 0xF7CB1C942D657C41D436C7A1B6E29F65F3E900DBB9AFF4064DC4AB2F843ACDA8
        key = p256.PublicKey(b"\x04" + x.to_bytes(32) + y.to_bytes(32))

        assert key.signed(b"sample", jose(r, s))
        assert not key.signed(b"Sample", jose(r, s))


@given(
    st.one_of(
        st.binary(min_size=64, max_size=64),
        st.builds(jose, st.integers(0, 2**16), st.integers(2**255 - 2, 2**255 + 2)),
    )
)
def test_a_signature_is_written_as_asn_1_wants_it(signature: bytes) -> None:
    r, s = int.from_bytes(signature[:32]), int.from_bytes(signature[32:])

    assert p256.to_der(signature) == encode_dss_signature(r, s)
