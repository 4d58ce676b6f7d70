"""The test vectors of the protocol, made with the client's codec alone."""

import hashlib

from waystation.client.queue import boxes
from waystation.client.queue.block import BlockReader, BlockWriter, plain_block
from waystation.client.queue.bodies import (
    Body,
    NotificationMeta,
    QuotaMarker,
    open_body,
    open_notification,
)
from waystation.client.queue.commands import Send, Sub, encode_command
from waystation.client.queue.encoding import i64, pad, short
from waystation.client.queue.hello import (
    encode_client_hello,
    encode_signed_key,
    open_signed_key,
)
from waystation.client.queue.keys import PrivateKey, PublicKey
from waystation.client.queue.links import contact_link_ids
from waystation.client.queue.transmission import encode_batch, encode_transmission


def run(first: int, last: int) -> bytes:
    return bytes(range(first, last + 1))


KEY = run(0x00, 0x1F)
SESSION_ID = b"\xaa" * 32
CORR_ID = run(0x00, 0x17)
ENTITY = run(0xC8, 0xDF)
MESSAGE_ID = run(0x18, 0x2F)
SENT_AT_S = 1_700_000_000
CLIENT = PrivateKey("x25519", run(0x01, 0x20))
CLIENT_PUBLIC = bytes.fromhex("07a37cbc142093c8b755dc1b10e86cb426374ad16aa853ed0bdfc0b2b86d1c7c")
SERVER = PrivateKey("x25519", run(0x65, 0x84))
SERVER_PUBLIC = bytes.fromhex("5714769d116bf76436ae74bc793d2c30ad1903c59ac5273805c7e2698b410c36")
SECRET = bytes.fromhex("c9ea6a3f79a000b60b076d4afc990b272f3f0b5aaa3f0b8713c209273e363863")
SIGNER = PrivateKey("ed25519", KEY)
SUB = bytes.fromhex(
    "401e937d25f058543e89fe0a5bfa368fb019fef8a443867f3fb5fd927d44fbdbec07cedd2ec5a005fd8ca9be0c3c16"
    "38fcf9bed1766342e7e68e8c7255ac87570830"
) + (short(CORR_ID) + short(ENTITY) + b"SUB")


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_padding_is_the_length_the_text_and_hashes() -> None:
    assert pad(b"abc", 16).hex() == "00036162632323232323232323232323"


def test_hsalsa20_is_the_same_in_c_and_in_python() -> None:
    expected = "50088706d3e1cee8a5c0f12504d968443211cf12af4a4b49e5c874b3ef4f85e7"

    assert boxes.hsalsa20(KEY).hex() == expected
    assert boxes.hsalsa20_in_python(KEY).hex() == expected


def test_a_box_takes_the_raw_key_through_hsalsa20_first() -> None:
    sealed = boxes.seal(boxes.hsalsa20(KEY), run(0x64, 0x7B), b"hello simplex")

    assert sealed.hex() == "0f5061c09c507923b56fea9fa486fb3873f2ee5f3ce1212140781a5669"


def test_the_chain_starts_and_steps() -> None:
    out = boxes.hkdf(SESSION_ID, KEY, b"SimpleXSbChainInit", 64)
    chain = boxes.Chain(out[:32])
    key, nonce = chain.step()

    assert out[:32].hex() == "60fb7efb33c458b51cca04eda96b61fca1b6ec7e11962f49100d037964a9ce34"
    assert out[32:].hex() == "b8531c963ad9a3528b2cfdf815bac61f2084ab9598f5ba089866c04e8355019b"
    assert key.hex() == "60d7f6c3508ee8cb2901e2a01da71520cdc35362b4f4e3dd26da4d688e94df0d"
    assert nonce.hex() == "7211c4135e5d0d5016c04ce333896fe1ca441aac00f5ef9c"
    assert chain._next.hex() == "2997a42eafa2d6c2c369e9f72ed5fe3992a72c402ee244f04f55e1d3319ca53a"


def test_a_sender_id_of_our_own_is_the_hash_of_the_correlation_id() -> None:
    from waystation.client.queue.links import sender_id_of

    assert sender_id_of(run(0x01, 0x18)).hex() == "3c63116120d91d131de483daf38f681ea36fddcfe9e98e41"


def test_the_signed_session_key_has_a_sequence_around_the_key() -> None:
    expected = bytes.fromhex(
        "3078302c302a300506032b656e03210032333435363738393a3b3c3d3e3f404142434445464748494a4b4c4d4e"
        "4f5051300506032b657003410054a7e50a96f8c36dafdb4c51936000341d4135a975b1efa87ef3a3f6147a5d47"
        "4a748eeb119f66b6d4c8935e137663974d7ec77de95880dd83730a15b0c5f50c"
    )
    key = PublicKey("x25519", run(0x32, 0x51))

    assert encode_signed_key(key, SIGNER) == expected
    assert open_signed_key(expected, SIGNER.public) == key.raw


def test_both_sides_find_the_same_secret() -> None:
    assert CLIENT.public.raw == CLIENT_PUBLIC
    assert SERVER.public.raw == SERVER_PUBLIC
    assert boxes.shared_secret(SERVER_PUBLIC, CLIENT.seed) == SECRET
    assert boxes.box_key(SERVER_PUBLIC, CLIENT.seed) == boxes.hsalsa20(SECRET)


def test_an_authenticator_is_a_box_over_the_hash_of_what_is_authorized() -> None:
    transmission = encode_transmission(
        encode_command(Send(b"hello"), 18),
        version=18,
        session_id=SESSION_ID,
        corr_id=CORR_ID,
        entity_id=ENTITY,
        key=CLIENT,
        server_key=SERVER_PUBLIC,
    )
    authenticator = bytes.fromhex(
        "472c7dda4aa02415bb550d7d515c9b51f1e952a29e9a5197571435607ee7cbcf7a0935dc208486e542fd41b5"
        "3e52b1e2889695ea1537a157286c00569faa70d9c5db65839f5229f71a1f2b557fecb1fd"
    )

    assert transmission == (
        short(authenticator) + b"0" + short(CORR_ID) + short(ENTITY) + b"SEND F hello"
    )


def test_a_signed_sub_and_the_block_that_holds_it() -> None:
    transmission = encode_transmission(
        encode_command(Sub(), 18),
        version=18,
        session_id=SESSION_ID,
        corr_id=CORR_ID,
        entity_id=ENTITY,
        key=SIGNER,
    )

    assert transmission == SUB
    assert len(SUB) == 119
    assert sha256(plain_block(encode_batch([SUB]))) == (
        "97bdbac68d8ffa3f799716f386fdb03154358913fd20fcf78319d3495cee95a0"
    )


def test_the_first_encrypted_block_of_a_client() -> None:
    from_server, from_client = boxes.block_chains(SESSION_ID, SECRET)
    keys = from_server._next.hex(), from_client._next.hex()
    block = BlockWriter(from_client).write(encode_batch([SUB]))
    _, the_same = boxes.block_chains(SESSION_ID, SECRET)

    assert keys == (
        "dd88c47d9eba077c56c8b28b16e73c3dbb947462c7b3e87731212b7fc03b48d3",
        "a7f78880cf8d7b96506aeb7f141f2672121843b039b7b3e9a90434ca3cc74c79",
    )
    assert block[:16].hex() == "5dba83ce1dff9e986114641cf5dd2058"
    assert sha256(block) == "ad15b678a83bf66c5aeebaf3f88c6484b898b43daab6a5f9fc3b7c6d4366b125"
    assert BlockReader(the_same).read(block) == encode_batch([SUB])


def test_a_message_for_the_recipient_opens() -> None:
    derived = boxes.hsalsa20(SECRET)
    sealed = boxes.seal_padded(derived, MESSAGE_ID, i64(SENT_AT_S) + b"T hello", 16_106)

    assert len(sealed) == 16_122
    assert sealed[:16].hex() == "496c3ebd7aaf929750a3838b025cdf9e"
    assert sha256(sealed) == "3acc8b68144d840e07d16693441ba20b3df7192f00bff824db3ae2f2c5fd24b4"
    assert open_body(derived, MESSAGE_ID, sealed) == Body(SENT_AT_S, True, b"hello")


def test_a_quota_marker_opens() -> None:
    derived = boxes.hsalsa20(SECRET)
    sealed = boxes.seal_padded(derived, MESSAGE_ID, b"QUOTA " + i64(SENT_AT_S), 16_106)

    assert sha256(sealed) == "dfa6539b48dd93f885d32837b2a7a97b7b72390c11283246124fa1c56f9178e8"
    assert open_body(derived, MESSAGE_ID, sealed) == QuotaMarker(SENT_AT_S)


def test_what_a_notification_carries_opens() -> None:
    derived = boxes.hsalsa20(SECRET)
    sealed = boxes.seal_padded(derived, MESSAGE_ID, short(MESSAGE_ID) + i64(SENT_AT_S), 128)

    assert len(sealed) == 144
    assert sealed[:16].hex() == "96d47faad089b364bf45cb368cda1c7d"
    assert open_notification(derived, MESSAGE_ID, sealed) == NotificationMeta(MESSAGE_ID, SENT_AT_S)


def test_a_client_hello_with_and_without_a_key() -> None:
    head = bytes.fromhex("0012") + short(KEY)
    spki = bytes.fromhex("2c302a300506032b656e032100") + CLIENT_PUBLIC

    assert encode_client_hello(18, KEY, CLIENT.public) == head + spki + b"F0"
    assert encode_client_hello(18, KEY, None) == head + b"F0"


def test_the_id_and_the_key_of_a_contact_link() -> None:
    link_id, key = contact_link_ids(KEY)

    assert link_id.hex() == "3232adb6fd5d0e30ab33495f6d24543458eae3aab2b1b535"
    assert key.hex() == "efcfdbca49d0a09566bb06c017e29d74861ce710afa58587a698fd4b85179d4a"
