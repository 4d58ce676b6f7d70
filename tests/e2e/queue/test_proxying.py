"""Two servers: one forwards commands to the other (queues §7, 93 to 102)."""

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.queue.conftest import Connect
from tests.e2e.queue.peer import Mailbox, Peer, Signer
from tests.e2e.queue.process import QueueServer
from tests.e2e.queue.through import Through, address_of, introduce
from tests.ports import free_ports
from waystation.queue.errors import Broker, BrokerFault, Code, RelayFault
from waystation.queue.model import (
    CorrId,
    Fingerprint,
    KeyKind,
    LinkData,
    LinkId,
    QueueMode,
    VersionRange,
    sender_id_from,
)
from waystation.queue.wire.certificates import fingerprint_of
from waystation.queue.wire.commands import (
    Key,
    Lget,
    Lkey,
    NewLink,
    Pfwd,
    Ping,
    RelayAddress,
    Send,
    Skey,
    Sub,
)
from waystation.queue.wire.responses import Err, Lnk, Msg, Ok, Pkey, Pong, Sok
from waystation.queue.wire.transmission import join_batch


@pytest.fixture(scope="session")
def proxy_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QueueServer]:
    """Passes on what it is given, in a hurry."""
    with QueueServer(tmp_path_factory.mktemp("proxy"), proxy_connect_timeout_s=5.0) as server:
        yield server


@pytest.fixture
def proxy(proxy_server: QueueServer, connect: Connect) -> Peer:
    return connect(proxy_server)


@pytest.fixture
def through(proxy: Peer, queue_server: QueueServer) -> Through:
    """To the usual server."""
    return Through(proxy, introduce(proxy, address_of(queue_server)))


@pytest.fixture
def recipient(connect: Connect) -> Peer:
    return connect()


def test_the_clients_that_may_use_a_proxy(
    connect: Connect, legacy_server: QueueServer, tmp_path: Path, queue_server: QueueServer
) -> None:
    """Q-093: not without the password, and nobody where it is switched off."""
    relay = address_of(queue_server)
    guarded = connect(legacy_server)

    assert introduce(guarded, relay) == Err(Code.PROXY_BASIC_AUTH)
    assert introduce(guarded, relay, b"wrong") == Err(Code.PROXY_BASIC_AUTH)
    assert isinstance(introduce(guarded, relay, b"sesame"), Pkey)
    with QueueServer(tmp_path / "off", proxying=False) as off, Peer(off) as peer:
        assert introduce(peer, relay) == Err(Code.PROXY_BASIC_AUTH)


def test_all_clients_get_the_same_session_with_a_relay(
    proxy: Peer, connect: Connect, proxy_server: QueueServer, queue_server: QueueServer
) -> None:
    """Q-094"""
    relay = address_of(queue_server)
    first, again = introduce(proxy, relay), introduce(proxy, relay)
    other = introduce(connect(proxy_server), relay)

    assert isinstance(first, Pkey)
    assert first == again == other
    assert fingerprint_of(first.chain[1]) == relay.fingerprint
    assert first.versions == VersionRange(8, 17)
    assert len(first.session_id) == 32


@pytest.mark.parametrize("kind", [None, *KeyKind], ids=lambda kind: getattr(kind, "value", "none"))
def test_the_longest_body_reaches_the_recipient(
    through: Through, recipient: Peer, kind: KeyKind | None
) -> None:
    """Q-095"""
    box = recipient.create()
    signer = None
    if kind is not None:
        signer = Signer(kind)
        assert isinstance(recipient.ask(Key(signer.public), box.recipient_id, box.signer), Ok)
    body = bytes(range(256)) * 62 + bytes(16048 - 62 * 256)

    response = through.ask(Send(False, body), box.sender_id, signer)

    assert response == Ok()
    assert recipient.take(box) == body


def test_a_session_that_does_not_exist(proxy: Peer, through: Through) -> None:
    """Q-096"""
    command, _ = through.seal(join_batch([through.transmission(Ping())]), CorrId(bytes(24)))

    assert proxy.fault(command, b"x" * 32) is Code.PROXY_NO_SESSION
    assert proxy.fault(command, b"x") is Code.PROXY_NO_SESSION


def test_faults_of_the_relay_are_inside_the_answer(through: Through, recipient: Peer) -> None:
    """Q-097"""
    box = recipient.create(subscribe=False)

    assert through.ask(Send(False, b"x"), b"n" * 24) == Err(Code.AUTH)
    assert through.ask(Send(False, b"x"), box.sender_id, Signer()) == Err(Code.AUTH)
    assert through.ask(Send(False, bytes(16049)), box.sender_id) == Err(Code.LARGE_MSG)
    answers = [through.ask(Send(False, b"x"), box.sender_id) for _ in range(5)]
    assert answers == [Ok()] * 4 + [Err(Code.QUOTA)]
    assert through.ask(b"HELLO", box.sender_id) == Err(Code.CMD_UNKNOWN)
    assert through.ask(Send(False, b"x")) == Err(Code.CMD_NO_ENTITY)


def test_what_may_not_be_forwarded(through: Through, recipient: Peer) -> None:
    """Q-098: what is wrong inside is said inside, what is wrong around it by the proxy."""
    box = recipient.create()
    ping = through.transmission(Ping())

    assert through.ask(Sub(), box.recipient_id, box.signer) == Err(Code.CMD_PROHIBITED)
    assert through.ask(Ping()) == Err(Code.CMD_PROHIBITED)
    assert through.forward(join_batch([ping, ping])) == Err(RelayFault(Code.BLOCK))
    assert through.forward(b"\0") == Err(RelayFault(Code.BLOCK))
    corr_id = CorrId(bytes(24))
    command, _ = through.seal(join_batch([ping]), corr_id)
    other = bytes([command.encrypted[0] ^ 1])
    broken = Pfwd(command.version, command.key, other + command.encrypted[1:])
    response = through.proxy.ask(broken, through.pkey.session_id, corr_id=corr_id)
    assert response == Err(RelayFault(Code.CRYPTO))
    longer = Pfwd(command.version, command.key, command.encrypted + b"#" * 9)
    response = through.proxy.ask(longer, through.pkey.session_id, corr_id=b"")
    assert response == Err(RelayFault(Code.CRYPTO))


def test_securing_and_links_through_a_proxy(through: Through, recipient: Peer) -> None:
    """Q-099"""
    signer = Signer()
    box = recipient.create()
    data = LinkData(b"f" * 2048, b"u" * 13824)
    corr_id = b"c" * 23 + b"1"
    invitation = recipient.create(link=NewLink(sender_id_from(corr_id), data), corr_id=corr_id)
    corr_id = b"c" * 23 + b"2"
    link_id = LinkId(b"l" * 24)
    contact = recipient.create(
        mode=QueueMode.CONTACT,
        link=NewLink(sender_id_from(corr_id), data, link_id),
        corr_id=corr_id,
    )

    assert through.ask(Skey(signer.public), box.sender_id, signer) == Ok()
    assert through.ask(Send(False, b"secured"), box.sender_id, signer) == Ok()
    assert recipient.take(box) == b"secured"
    assert invitation.ids.link_id is not None
    linked = through.ask(Lkey(signer.public), invitation.ids.link_id, signer)
    assert linked == Lnk(invitation.sender_id, data)
    assert through.ask(Lget(), link_id) == Lnk(contact.sender_id, data)


def test_a_relay_that_cannot_be_reached(proxy: Peer, queue_server: QueueServer) -> None:
    """Q-100: told at once from then on, without another attempt, and no socket is left behind."""
    port = free_ports(1)
    nobody = RelayAddress((b"127.0.0.1",), b"%d" % port, Fingerprint(bytes(32)))
    first = introduce(proxy, nobody)
    with socket.create_server(("127.0.0.1", port)) as somebody:
        somebody.settimeout(0.2)
        began = time.monotonic()
        answers = [introduce(proxy, nobody) for _ in range(1000)]
        took_s = time.monotonic() - began

        assert first == Err(BrokerFault(Broker.NETWORK))
        assert answers == [first] * 1000
        assert took_s < 60
        with pytest.raises(TimeoutError):
            somebody.accept()
    unnamed = RelayAddress((b"hidden.onion",), b"", Fingerprint(bytes(32)))
    assert introduce(proxy, unnamed) == Err(BrokerFault(Broker.HOST))
    other = RelayAddress((b"127.0.0.1",), b"%d" % queue_server.port, Fingerprint(bytes(32)))
    assert introduce(proxy, other) == Err(BrokerFault(Broker.HANDSHAKE_IDENTITY))
    assert proxy.ask(Ping()) == Pong()


def test_a_relay_that_accepts_and_says_nothing(tmp_path: Path) -> None:
    """Q-100: TIMEOUT, which clients take as temporary."""
    with (
        QueueServer(tmp_path / "proxy", proxy_connect_timeout_s=0.5) as server,
        socket.create_server(("127.0.0.1", 0)) as silent,
        Peer(server) as peer,
    ):
        port = silent.getsockname()[1]
        relay = RelayAddress((b"127.0.0.1",), b"%d" % port, Fingerprint(bytes(32)))

        assert introduce(peer, relay) == Err(BrokerFault(Broker.TIMEOUT))


def check_delivery(
    through: Through, recipient: Peer, *, queues: int, messages: int, window: int = 32
) -> None:
    """So many queues with so many messages each, all at once: each arrives exactly once."""
    boxes = [recipient.create() for _ in range(queues)]
    numbered = [
        (Send(False, b"%d" % number), box.sender_id, None)
        for number in range(messages)
        for box in boxes
    ]

    assert through.ask_all(numbered, window) == [Ok()] * (queues * messages)
    for box in boxes:
        assert _drain(recipient, box) == list(range(messages))


def _drain(recipient: Peer, box: Mailbox) -> list[int]:
    """What waits in a queue, by asking for it again from the start."""
    bodies: list[int] = []
    response = recipient.ask(Sub(), box.recipient_id, box.signer)
    assert response == Sok()
    head = next(
        answer.response
        for answer in iter(recipient.next, None)
        if answer.entity_id == box.recipient_id
    )
    while isinstance(head, Msg):
        message = box.open(head)
        assert message.body is not None
        bodies.append(int(message.body))
        head = recipient.ack(box, message)
    assert head == Ok()
    return sorted(bodies)


@pytest.fixture(scope="module")
def roomy_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QueueServer]:
    with QueueServer(tmp_path_factory.mktemp("roomy"), queue_quota=2000) as server:
        yield server


@pytest.mark.parametrize("queues, messages", [(1, 60), (5, 12), (10, 6)])
def test_many_messages_through_a_proxy(
    proxy: Peer, connect: Connect, roomy_server: QueueServer, queues: int, messages: int
) -> None:
    """Q-102, a small part of it; `make soak` sends all."""
    through = Through(proxy, introduce(proxy, address_of(roomy_server)))

    check_delivery(through, connect(roomy_server), queues=queues, messages=messages)


@pytest.mark.soak
@pytest.mark.parametrize("queues, messages", [(1, 1000), (5, 200), (10, 100)])
def test_a_thousand_messages_through_a_proxy(
    proxy: Peer, connect: Connect, roomy_server: QueueServer, queues: int, messages: int
) -> None:
    """Q-102"""
    through = Through(proxy, introduce(proxy, address_of(roomy_server)))

    check_delivery(through, connect(roomy_server), queues=queues, messages=messages)


def test_a_relay_that_restarts(proxy: Peer, connect: Connect, roomy_server: QueueServer) -> None:
    """Q-102: the session is gone, and a new one works; what was sent before is still there."""
    relay = address_of(roomy_server)
    through = Through(proxy, introduce(proxy, relay))
    with Peer(roomy_server) as creator:
        box = creator.create(subscribe=False)
    assert through.ask(Send(False, b"1"), box.sender_id) == Ok()

    roomy_server.stop()
    roomy_server.start()
    fault = _until_no_session(through, box)
    again = Through(proxy, introduce(proxy, relay))

    assert fault == Err(Code.PROXY_NO_SESSION)
    assert again.pkey.session_id != through.pkey.session_id
    assert again.ask(Send(False, b"2"), box.sender_id) == Ok()
    assert _drain(connect(roomy_server), box) == [1, 2]


def _until_no_session(through: Through, box: Mailbox) -> object:
    """The proxy may notice a moment later that the relay left; until then it is NETWORK."""
    for _ in range(100):
        answer = through.ask(Send(False, b"0"), box.sender_id)
        if answer != Err(BrokerFault(Broker.NETWORK)):
            return answer
        time.sleep(0.05)
    return None
