"""TLS, hellos, blocks and batches (queues §7, 1 to 19)."""

import hashlib
import secrets
import shutil
import socket
import ssl
import subprocess
from pathlib import Path

import pytest

from tests.e2e.queue.certificates import longer_chain
from tests.e2e.queue.conftest import Connect
from tests.e2e.queue.peer import ClosedError, Peer, Signer
from tests.e2e.queue.process import QueueServer
from waystation.queue.errors import Code
from waystation.queue.model import QueueMode, SessionId, VersionRange
from waystation.queue.server.tls import OPENSSL_CONF
from waystation.queue.wire.block import BLOCK_BYTES, open_plain
from waystation.queue.wire.certificates import leaf_key
from waystation.queue.wire.commands import Del, Key, Ping, Send, Skey, Sub
from waystation.queue.wire.fields import FieldError
from waystation.queue.wire.handshake import decode_server_hello
from waystation.queue.wire.responses import Err, Msg, Ok, Pong, Sok
from waystation.queue.wire.signed_key import open_signed_key
from waystation.queue.wire.transmission import join_batch, pack_batches

VERSIONS = range(6, 19)


@pytest.mark.parametrize("which", ["queue_server", "legacy_server"])
def test_tls_is_as_clients_want_it_and_both_sides_know_the_session(
    which: str, request: pytest.FixtureRequest
) -> None:
    """Q-001 (Ed448) and Q-002 (Ed25519)."""
    server: QueueServer = request.getfixturevalue(which)
    with Peer(server) as peer:
        cipher = peer.sock.cipher()

        assert peer.sock.version() == "TLSv1.3"
        assert cipher is not None
        assert cipher[0] == "TLS_CHACHA20_POLY1305_SHA256"
        assert peer.sock.selected_alpn_protocol() == "smp/1"
        assert len(peer.session_id) == 32
        assert peer.server_hello.session_id == peer.session_id
        assert peer.server_hello.chain == server.identity.chain
        assert peer.sock.getpeercert(binary_form=True) == peer.server_hello.chain[0]
        assert isinstance(peer.ask(Ping()), Pong)


@pytest.mark.parametrize("length", [3, 4])
def test_the_second_certificate_of_a_longer_chain_is_the_identity(
    data_dir: Path, length: int
) -> None:
    """Q-002: an operator's own chain of three or four."""
    chain = longer_chain(data_dir / "keys" / "queue", length)
    with QueueServer(data_dir) as server, Peer(server) as peer:
        assert peer.server_hello.chain == chain
        assert server.identity.fingerprint == hashlib.sha256(chain[1]).digest()
        assert isinstance(peer.ask(Ping()), Pong)


def test_a_hello_for_another_server_ends_the_connection(connect: Connect) -> None:
    """Q-003"""
    peer = connect(key_hash=secrets.token_bytes(32))

    peer.expect_closed()


def test_without_alpn_a_current_server_refuses(connect: Connect) -> None:
    """Q-004"""
    with pytest.raises((ClosedError, OSError)):
        connect(alpn=())


def test_without_alpn_a_legacy_server_offers_version_6_alone(
    connect: Connect, legacy_server: QueueServer
) -> None:
    """Q-004"""
    peer = connect(legacy_server, alpn=(), version=6)

    assert peer.server_hello.versions == VersionRange(6, 6)
    assert isinstance(peer.ask(Ping()), Pong)


@pytest.mark.parametrize("version", [7, 19])
def test_a_version_that_was_not_offered_ends_the_connection(connect: Connect, version: int) -> None:
    """Q-005"""
    peer = connect(version=version)

    peer.expect_closed()


def test_without_a_key_of_the_client_blocks_are_plain_and_all_else_works(
    connect: Connect,
) -> None:
    """Q-006"""
    peer, sender = connect(with_key=False), connect()
    box = peer.create()
    sender.send(box, b"plain")

    assert peer.take(box) == b"plain"


def test_encrypted_blocks_stay_in_step(connect: Connect) -> None:
    """Q-007"""
    peer = connect()

    for _ in range(12):
        assert isinstance(peer.ask(Ping()), Pong)


def test_a_proxy_with_a_key_gets_plain_blocks(connect: Connect) -> None:
    """Q-008"""
    peer = connect(is_proxy=True)

    assert isinstance(peer.ask(Ping()), Pong)


def test_what_follows_the_known_fields_of_a_hello_is_passed_over(connect: Connect) -> None:
    """Q-009"""
    peer = connect(behind_hello=b"what version 25 will say")

    assert isinstance(peer.ask(Ping()), Pong)


def test_the_session_key_is_signed_by_the_leaf(connect: Connect) -> None:
    """Q-010: the peer has verified it; with one bit changed nobody would."""
    hello = connect().server_hello
    changed = bytearray(hello.signed_key)
    changed[60] ^= 1

    assert len(open_signed_key(hello.signed_key, leaf_key(hello.chain))) == 32
    with pytest.raises(FieldError):
        open_signed_key(bytes(changed), leaf_key(hello.chain))


def test_half_a_block_before_a_close_affects_no_other_client(connect: Connect) -> None:
    """Q-011"""
    peer, other = connect(), connect()
    peer.sock.sendall(bytes(BLOCK_BYTES // 2))
    peer.close()

    assert isinstance(other.ask(Ping()), Pong)


def test_a_block_that_does_not_open_is_answered_and_the_next_one_is_served(
    connect: Connect,
) -> None:
    """Q-012"""
    peer = connect()
    said, _ = peer.transmission(Ping())
    broken = bytearray(peer.agreement.blocks.seal(join_batch([said])))
    broken[100] ^= 1
    peer.write_block(bytes(broken))
    answer = peer.next()

    assert answer.response == Err(Code.BLOCK)
    assert (answer.corr_id, answer.entity_id) == (b"", b"")
    assert isinstance(peer.ask(Ping()), Pong)


def test_a_plain_block_with_a_wrong_length_is_answered_too(connect: Connect) -> None:
    """Q-012"""
    peer = connect(with_key=False)
    peer.write_block(b"\xff\xff" + bytes(BLOCK_BYTES - 2))

    assert peer.next().response == Err(Code.BLOCK)
    assert isinstance(peer.ask(Ping()), Pong)


def test_a_block_may_come_in_pieces(connect: Connect) -> None:
    peer = connect()
    said, corr_id = peer.transmission(Ping())
    block = peer.agreement.blocks.seal(join_batch([said]))
    for start in range(0, BLOCK_BYTES, 5000):
        peer.write_block(block[start : start + 5000])

    assert isinstance(peer.answer_to(corr_id), Pong)


def test_two_commands_in_one_block_get_two_answers(connect: Connect) -> None:
    """Q-013"""
    peer = connect()
    first, first_id = peer.transmission(Ping())
    second, second_id = peer.transmission(b"HELLO", b"12345678")
    peer.write(first, second)
    answers = [peer.next(), peer.next()]

    assert [one.corr_id for one in answers] == [first_id, second_id]
    assert [one.response for one in answers] == [Pong(), Err(Code.CMD_UNKNOWN)]


def test_a_block_takes_135_subscriptions_and_300_make_three_blocks(connect: Connect) -> None:
    """Q-014"""
    peer, signer = connect(), Signer()
    said = [peer.transmission(Sub(), secrets.token_bytes(24), signer) for _ in range(300)]
    contents = pack_batches([one for one, _ in said])
    for content in contents:
        peer.write_block(peer.agreement.blocks.seal(content))
    answers = [peer.next() for _ in said]

    assert [content[0] for content in contents] == [30, 135, 135]
    assert [one.corr_id for one in answers] == [corr_id for _, corr_id in said]
    assert {one.response for one in answers} == {Err(Code.AUTH)}


def test_a_block_takes_255_commands(connect: Connect) -> None:
    """Q-014"""
    peer = connect()
    peer.write(*(peer.transmission(Ping(), corr_id=b"%d" % n)[0] for n in range(255)))

    assert [peer.next().corr_id for _ in range(255)] == [b"%d" % n for n in range(255)]


@pytest.mark.parametrize("content", [b"\0", b"", b"\1\0\5hi", b"\1\0\2hi!"])
def test_what_is_no_batch_is_refused(connect: Connect, content: bytes) -> None:
    """Q-015"""
    peer = connect()
    peer.write_block(peer.agreement.blocks.seal(content))
    answer = peer.next()

    assert answer.response == Err(Code.BLOCK)
    assert (answer.corr_id, answer.entity_id) == (b"", b"")


def test_a_proof_of_a_length_that_does_not_exist_is_refused(connect: Connect) -> None:
    """Q-016"""
    peer = connect()
    said, corr_id = peer.transmission(Sub(), b"12345678", proof=bytes(63))
    peer.write(said)
    answer = peer.next()

    assert answer.response == Err(Code.BLOCK)
    assert (answer.corr_id, answer.entity_id) == (corr_id, b"")


def test_ping_stands_alone(connect: Connect) -> None:
    """Q-017"""
    peer = connect()

    assert isinstance(peer.ask(Ping()), Pong)
    assert peer.fault(Ping(), b"12345678") is Code.CMD_HAS_AUTH
    assert peer.fault(Ping(), b"", Signer()) is Code.CMD_HAS_AUTH


def test_version_6_sends_the_session_and_it_must_be_ours(
    connect: Connect, legacy_server: QueueServer
) -> None:
    """Q-018"""
    peer = connect(legacy_server, version=6)

    assert isinstance(peer.ask(Ping()), Pong)
    said, corr_id = peer.transmission(Ping(), session_id=SessionId(secrets.token_bytes(32)))
    peer.write(said)
    assert peer.answer_to(corr_id) == Err(Code.SESSION)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_creates_sends_secures_and_deletes(
    connect: Connect, legacy_server: QueueServer, version: int
) -> None:
    """Q-019"""
    recipient = connect(legacy_server, version=version)
    sender = connect(legacy_server, version=version)
    key = Signer()
    box = recipient.create(password=b"sesame")
    sender.send(box, b"unsecured")
    assert recipient.take(box) == b"unsecured"
    if version >= 9:
        secured = sender.ask(Skey(key.public), box.sender_id, key)
    else:
        secured = recipient.ask(Key(key.public), box.recipient_id, box.signer)
    assert isinstance(secured, Ok)
    sender.send(box, b"secured", signer=key)
    assert recipient.take(box) == b"secured"

    subscribed = recipient.ask(Sub(), box.recipient_id, box.signer)
    assert isinstance(subscribed, Sok if version >= 16 else Ok)
    assert isinstance(recipient.ask(Del(), box.recipient_id, box.signer), Ok)
    assert sender.fault(Send(False, b"late"), box.sender_id, key) is Code.AUTH


@pytest.mark.parametrize(
    "version,longest", [(6, 16088), (7, 16088), (8, 16064), (10, 16064), (11, 16048), (18, 16048)]
)
def test_the_longest_body_of_each_version_arrives_and_no_longer_one(
    connect: Connect, legacy_server: QueueServer, version: int, longest: int
) -> None:
    """Q-043"""
    recipient, sender = connect(legacy_server), connect(legacy_server, version=version)
    box = recipient.create(mode=QueueMode.CONTACT, password=b"sesame")
    body = secrets.token_bytes(longest)
    sender.send(box, body)
    message = box.open(recipient.event(Msg))

    assert message.body == body
    assert sender.fault(Send(False, body + b"!"), box.sender_id) is Code.LARGE_MSG


def test_openssl_completes_the_handshake_with_either_group(queue_server: QueueServer) -> None:
    """An implementation of TLS that shares nothing with ours agrees on suite, groups and chain."""
    openssl = shutil.which("openssl")
    assert openssl is not None
    for group, shown in (("X448", "X448"), ("X25519", "X25519")):
        done = subprocess.run(
            [
                *(openssl, "s_client", "-connect", f"127.0.0.1:{queue_server.port}"),
                *("-tls1_3", "-groups", group, "-alpn", "smp/1", "-showcerts"),
            ],
            input=b"",
            capture_output=True,
            timeout=60,
            check=False,
        )
        said = done.stdout.decode(errors="replace")

        assert "TLS_CHACHA20_POLY1305_SHA256" in said
        assert f"Server Temp Key: {shown}" in said
        assert "ALPN protocol: smp/1" in said
        assert said.count("BEGIN CERTIFICATE") == 2
        assert "New Session Ticket" not in said
        assert "Reused" not in said


@pytest.mark.parametrize("suite", ["TLS_AES_256_GCM_SHA384", "TLS_AES_128_GCM_SHA256"])
def test_other_suites_and_older_tls_are_refused(queue_server: QueueServer, suite: str) -> None:
    openssl = shutil.which("openssl")
    assert openssl is not None
    for how in (("-tls1_3", "-ciphersuites", suite), ("-tls1_2",)):
        done = subprocess.run(
            [openssl, "s_client", "-connect", f"127.0.0.1:{queue_server.port}", *how],
            input=b"",
            capture_output=True,
            timeout=60,
            check=False,
        )

        assert done.returncode != 0


def test_the_session_id_is_the_finished_message_that_openssl_sent(
    queue_server: QueueServer, tmp_path: Path
) -> None:
    """What the server calls the session is what another implementation sent as its Finished."""
    openssl = shutil.which("openssl")
    assert openssl is not None
    command = [
        *(openssl, "s_client", "-connect", f"127.0.0.1:{queue_server.port}", "-tls1_3"),
        *("-alpn", "smp/1", "-quiet", "-msg", "-msgfile", str(tmp_path / "messages")),
    ]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as client:
        assert client.stdout is not None
        hello = decode_server_hello(open_plain(client.stdout.read(BLOCK_BYTES)))
        client.terminate()
    lines = (tmp_path / "messages").read_text().splitlines()
    start = max(n for n, line in enumerate(lines) if ">>>" in line and "Finished" in line)
    dump = "".join(line.strip() for line in lines[start + 1 : start + 4]).replace(" ", "")
    finished = bytes.fromhex(dump)

    assert finished[:4] == b"\x14\x00\x00\x20"
    assert hello.session_id == finished[4:36]


def test_no_session_can_be_resumed(queue_server: QueueServer) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["smp/1"])
    with (
        socket.create_connection(("127.0.0.1", queue_server.port), timeout=20) as raw,
        context.wrap_socket(raw) as sock,
    ):
        while len(sock.recv(BLOCK_BYTES)) == 0:
            pass

        assert sock.session is None or not sock.session.has_ticket


def test_the_packaged_configuration_is_where_the_supervisor_looks() -> None:
    assert OPENSSL_CONF.is_file()
