"""TLS on a socket, record by record: the quick way, the public way, and the one that asks."""

import socket
import ssl
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from waystation.net import tls as carriers
from waystation.net.tls import RECORD_BYTES, SecureCarrier, TlsCarrier, inside, secure_with
from waystation.queue.identity import Identity, ensure_identity
from waystation.queue.server.tls import OPENSSL_CONF, asking_tls

RECORDS = [bytes([n]) * RECORD_BYTES for n in range(3)]


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    return ensure_identity(tmp_path_factory.mktemp("keys"), host="here", algorithm="ed25519")


class Ends:
    """A carrier and the client at its other end, in one thread."""

    def __init__(self, way: str, identity: Identity, monkeypatch: pytest.MonkeyPatch) -> None:
        ours, theirs = socket.socketpair()
        for one in (ours, theirs):
            one.setblocking(False)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols(["smp/1"])
        self.client = context.wrap_socket(theirs, do_handshake_on_connect=False)
        self.carrier: SecureCarrier
        if way == "asking":
            self.carrier = asking_tls(identity)(ours)
        else:
            if way == "public":
                monkeypatch.setattr(
                    carriers, "inside", lambda sock: inside(sock, "no such attribute")
                )
            server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            server.num_tickets = 0
            server.set_alpn_protocols(["smp/1"])
            server.load_cert_chain(identity.chain_file, identity.key_file)
            self.carrier = TlsCarrier(ours, server)

    def shake(self) -> None:
        shaken = done = False
        while not (shaken and done):
            try:
                self.client.do_handshake()
                shaken = True
            except ssl.SSLWantReadError:
                pass
            done = done or bool(self.carrier.shake())

    def close(self) -> None:
        self.client.close()
        self.carrier.close(self.carrier.fd)


@pytest.fixture(params=["quick", "public", "asking"])
def ends(
    request: pytest.FixtureRequest, identity: Identity, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Ends]:
    made = Ends(request.param, identity, monkeypatch)
    made.shake()
    yield made
    made.close()


def test_records_go_both_ways_whole_or_in_parts(ends: Ends) -> None:
    assert ends.carrier.protocol == "smp/1"
    assert ends.carrier.binding == ends.client.get_channel_binding("tls-unique")
    assert ends.carrier.peer_chain == ()
    assert ends.carrier.read(ends.carrier.fd) is None
    ends.client.send(RECORDS[0])
    assert ends.carrier.read(ends.carrier.fd) == RECORDS[0]
    ends.client.send(RECORDS[1][:100])
    ends.client.send(RECORDS[1][100:])
    assert ends.carrier.read(ends.carrier.fd) == RECORDS[1][:100]
    assert ends.carrier.read(ends.carrier.fd) == RECORDS[1][100:]

    assert ends.carrier.write(ends.carrier.fd, RECORDS[2]) == RECORD_BYTES
    assert ends.client.recv(RECORD_BYTES) == RECORDS[2]


def test_a_full_socket_takes_nothing_and_goes_on_later(ends: Ends) -> None:
    sent = 0
    while (took := ends.carrier.write(ends.carrier.fd, RECORDS[0])) == RECORD_BYTES:
        sent += 1
        assert sent < 1000
    got = 0
    while True:
        try:
            got += len(ends.client.recv(RECORD_BYTES))
        except ssl.SSLWantReadError:
            break
    while took < RECORD_BYTES:
        took += ends.carrier.write(ends.carrier.fd, RECORDS[0][took:] if took else RECORDS[0])

    assert got >= sent * RECORD_BYTES
    got += len(ends.client.recv(RECORD_BYTES))
    assert got <= (sent + 1) * RECORD_BYTES


def test_the_end_of_the_stream_is_seen(ends: Ends) -> None:
    ends.carrier.finish(ends.carrier.fd)
    assert ends.client.recv(RECORD_BYTES) == b""
    ends.client.close()

    assert ends.carrier.discard(ends.carrier.fd)


def test_a_client_that_goes_without_a_word_is_lost_or_at_its_end(ends: Ends) -> None:
    socket.socket.shutdown(ends.client, socket.SHUT_RDWR)
    try:
        read = ends.carrier.read(ends.carrier.fd)
    except OSError:
        read = b""

    assert read == b""


def test_a_handshake_that_is_none_fails(identity: Identity) -> None:
    for carry in (asking_tls(identity), secure_with(_context(identity))):
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            carrier = carry(ours)
            theirs.sendall(b"GET / HTTP/1.1\r\n\r\n")
            with pytest.raises((ssl.SSLError, ConnectionAbortedError)):
                carrier.shake()
            carrier.close(carrier.fd)


def _context(identity: Identity) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(identity.chain_file, identity.key_file)
    return context


def test_the_quick_way_is_there(identity: Identity) -> None:
    """`SSLSocket._sslobj` is private. Should a new Python be without it, the server goes on more
    slowly: look for another way then, and measure it (`python -m benchmarks --only queue`)."""
    ours, theirs = socket.socketpair()
    with (
        theirs,
        _context(identity).wrap_socket(
            ours, server_side=True, do_handshake_on_connect=False
        ) as sock,
    ):
        way = inside(sock)

        assert type(way).__module__ == "_ssl", "no quick way to TLS any more"
        assert callable(way.read)
        assert callable(way.write)


def test_tls_that_asks_is_as_strict_as_the_other(tmp_path: Path) -> None:
    """In a process of its own, where OPENSSL_CONF is named: group, suite, and no session twice."""
    program = textwrap.dedent(
        """
        import socket, ssl, sys, threading
        from pathlib import Path
        from waystation.queue.identity import ensure_identity
        from waystation.queue.server.tls import asking_tls
        identity = ensure_identity(Path(sys.argv[1]), host="here", algorithm="ed448")
        ours, theirs = socket.socketpair()
        carrier = asking_tls(identity)(ours)
        def client():
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            with context.wrap_socket(theirs) as sock:
                print(sock.cipher()[0], sock.version(), sock.session.has_ticket)
        thread = threading.Thread(target=client)
        thread.start()
        while not carrier.shake():
            pass
        thread.join()
        print(carrier._tls.get_group_name(), len(carrier.binding), carrier.protocol)
        carrier.close(carrier.fd)
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "keys")],
        env={"OPENSSL_CONF": str(OPENSSL_CONF), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert done.stdout.splitlines() == [
        "TLS_CHACHA20_POLY1305_SHA256 TLSv1.3 False",
        "x448 32 None",
    ]
