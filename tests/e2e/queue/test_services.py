"""Services: busy clients with a certificate (queues §2.8; §7, 84), over real TLS."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.queue.conftest import Connect
from tests.e2e.queue.peer import Mailbox, Peer, ServiceCard, Signer, TurnedAwayError
from tests.e2e.queue.process import QueueServer
from tests.e2e.queue.test_client import address_of, soon
from tests.e2e.queue.test_notifying import Credentials
from waystation.client.queue import service as services
from waystation.client.queue.client import QueueClient
from waystation.client.queue.connection import ConnectionSettings
from waystation.client.queue.encoding import BadBytesError
from waystation.client.queue.events import Notified, Received, ServiceTaken
from waystation.client.queue.queue_secrets import SenderQueue
from waystation.client.queue.tls import client_context
from waystation.queue.errors import Code
from waystation.queue.model import QueueMode, ServiceRole, SubMode
from waystation.queue.wire.boxes import agree, new_dh_pair
from waystation.queue.wire.commands import New, Nsub, Nsubs, Ping, Que, Rfwd, Send, Sub, Subs
from waystation.queue.wire.responses import (
    Deld,
    End,
    Ends,
    Err,
    Ids,
    Info,
    Nmsg,
    Pong,
    Response,
    Sok,
    Soks,
)

NOTIFIER, MESSAGING, PROXY = ServiceRole.NOTIFIER, ServiceRole.MESSAGING, ServiceRole.PROXY
BAD_SERVICE = b"EHANDSHAKE BAD_SERVICE"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QueueServer]:
    with QueueServer(tmp_path_factory.mktemp("services"), service_certificates=True) as server:
        yield server


@pytest.fixture
def card(tmp_path: Path) -> ServiceCard:
    return ServiceCard(tmp_path / "service", NOTIFIER)


class _Key(Signer):
    """The key of a service's session, which signs alone."""

    def __init__(self, card: ServiceCard) -> None:
        super().__init__()
        self._ed25519 = card.session_key


def watched(owner: Peer) -> tuple[Mailbox, Credentials]:
    box = owner.create()
    return box, Credentials().set_up(owner, box)


def subscribe(service: Peer, credentials: Credentials) -> Response:
    return service.ask(Nsub(), credentials.notifier_id, credentials.signer, as_service=True)


def subscribe_all(service: Peer) -> Response:
    assert service.service is not None
    return service.ask(Nsubs(), service.service_id, _Key(service.service))


def test_a_service_subscribes_to_notifiers_and_then_to_all_of_them(
    connect: Connect, server: QueueServer, card: ServiceCard
) -> None:
    """Q-084, as far as one run goes"""
    owner, service = connect(server), connect(server, service=card)
    (box, one), (_, two) = watched(owner), watched(owner)
    assert len(service.service_id) == 24

    assert service.fault(Nsub(), one.notifier_id, one.signer) is Code.SERVICE
    for credentials in (one, one, two):
        assert subscribe(service, credentials) == Sok(service.service_id)
    owner.send(box, b"told", notify=True)
    service.event(Nmsg, one.notifier_id)

    again = connect(server, service=card)
    assert again.service_id == service.service_id
    assert subscribe_all(again) == Soks(2)
    assert service.event(Ends, service.service_id) == Ends(2)
    owner.take(box)
    owner.send(box, b"told elsewhere", notify=True)
    again.event(Nmsg, one.notifier_id)
    service.expect_silence()


def test_one_subscription_of_a_new_session_takes_all_from_the_old(
    connect: Connect, server: QueueServer, card: ServiceCard
) -> None:
    """Q-084"""
    owner, old = connect(server), connect(server, service=card)
    (box, one), (_, two) = watched(owner), watched(owner)
    for credentials in (one, two):
        subscribe(old, credentials)
    new = connect(server, service=card)

    assert subscribe(new, two) == Sok(new.service_id)
    assert old.event(Ends, old.service_id) == Ends(2)
    owner.send(box, b"", notify=True)
    new.event(Nmsg, one.notifier_id)


def test_what_is_a_services_is_so_after_two_restarts(tmp_path: Path) -> None:
    """Q-084: the service keeps its id, its notifiers and what waited for them."""
    card = ServiceCard(tmp_path / "service", NOTIFIER, length=2)
    with QueueServer(tmp_path / "data", service_certificates=True) as server:
        with Peer(server) as owner, Peer(server, service=card) as service:
            box, credentials = watched(owner)
            service_id = service.service_id
            assert subscribe(service, credentials) == Sok(service_id)
        with Peer(server) as sender:
            sender.send(box, b"nobody is there", notify=True)
        for run in range(2):
            assert server.stop() == 0
            server.start()
            with Peer(server, service=card) as service:
                assert service.service_id == service_id
                assert subscribe_all(service) == Soks(1)
                if not run:
                    service.event(Nmsg, credentials.notifier_id)
                else:
                    with Peer(server) as sender:
                        sender.send(box, b"", notify=True)
                    service.event(Nmsg, credentials.notifier_id)


def test_a_subscription_of_a_service_may_be_replaced_by_another_client(
    connect: Connect, server: QueueServer, card: ServiceCard, tmp_path: Path
) -> None:
    owner, service, plain = connect(server), connect(server, service=card), connect(server)
    box, credentials = watched(owner)
    credentials.subscribe(plain)
    subscribe(service, credentials)
    plain.event(End, credentials.notifier_id)
    other = connect(server, service=ServiceCard(tmp_path / "other", NOTIFIER, length=3))
    assert subscribe(other, credentials) == Sok(other.service_id)
    service.event(End, credentials.notifier_id)
    assert subscribe_all(service) == Soks(0)
    credentials.subscribe(plain)
    other.event(End, credentials.notifier_id)
    owner.send(box, b"", notify=True)

    plain.event(Nmsg, credentials.notifier_id)
    assert subscribe_all(other) == Soks(0)


def test_a_service_learns_that_a_notifier_is_gone(
    connect: Connect, server: QueueServer, card: ServiceCard
) -> None:
    owner, service = connect(server), connect(server, service=card)
    box, old = watched(owner)
    subscribe(service, old)
    new = Credentials().set_up(owner, box)

    service.event(Deld, old.notifier_id)
    assert subscribe_all(service) == Soks(0)
    assert subscribe(service, new) == Sok(service.service_id)


def test_a_service_keeps_to_its_role(connect: Connect, server: QueueServer, tmp_path: Path) -> None:
    owner = connect(server)
    box, credentials = watched(owner)
    notifier = connect(server, service=ServiceCard(tmp_path / "n", NOTIFIER))
    proxy = connect(server, service=ServiceCard(tmp_path / "p", PROXY))
    messaging = connect(server, service=ServiceCard(tmp_path / "m", MESSAGING))
    nsub, sub = (Nsub(), credentials.notifier_id), (Sub(), box.recipient_id)

    assert notifier.fault(Send(False, b""), box.sender_id) is Code.CMD_PROHIBITED
    assert notifier.fault(*sub, box.signer, as_service=True) is Code.CMD_PROHIBITED
    assert notifier.fault(Rfwd(b"x")) is Code.CMD_PROHIBITED
    assert proxy.fault(*sub, box.signer, as_service=True) is Code.CMD_PROHIBITED
    assert messaging.fault(*nsub, credentials.signer, as_service=True) is Code.CMD_PROHIBITED
    assert messaging.service is not None
    key = _Key(messaging.service)
    assert messaging.fault(Subs(), messaging.service_id, key) is Code.CMD_PROHIBITED
    assert proxy.fault(Rfwd(b"x")) is not Code.CMD_PROHIBITED
    for peer in (notifier, proxy, messaging):
        assert isinstance(peer.ask(Ping()), Pong)


def test_both_proofs_must_hold(connect: Connect, server: QueueServer, card: ServiceCard) -> None:
    owner, service = connect(server), connect(server, service=card)
    _, credentials = watched(owner)
    notifier_id = credentials.notifier_id
    said, corr_id = service.transmission(Nsub(), notifier_id, credentials.signer, as_service=True)
    service.write(said[:67] + bytes(64) + said[131:])
    assert service.answer_to(corr_id) == Err(Code.SERVICE)
    assert service.fault(Nsub(), notifier_id, Signer(), as_service=True) is Code.AUTH
    assert service.fault(Nsub(), bytes(24), Signer(), as_service=True) is Code.AUTH
    assert service.fault(Nsubs(), service.service_id, Signer()) is Code.AUTH
    assert service.fault(Nsubs(), bytes(24), _Key(card)) is Code.SERVICE
    assert service.fault(Nsubs(), service.service_id, _Key(card), as_service=True) is Code.SERVICE
    plain, corr_id = service.transmission(Nsub(), notifier_id, credentials.signer)
    signature = card.session_key.sign(b"something else")
    service.write(plain[:65] + b"1\x40" + signature + plain[66:])

    assert service.answer_to(corr_id) == Err(Code.SERVICE)


def test_a_messaging_service_makes_queues_and_receives(
    connect: Connect, server: QueueServer, tmp_path: Path
) -> None:
    card = ServiceCard(tmp_path / "m", MESSAGING, length=4)
    service, sender, signer = connect(server, service=card), connect(server), Signer()
    public, private = new_dh_pair()

    def new(mode: SubMode) -> Response:
        command = New(signer.public, public, None, mode, QueueMode.MESSAGING, None, None)
        return service.ask(command, b"", signer, as_service=True)

    assert new(SubMode.CREATE) == Err(Code.CMD_PROHIBITED)
    ids = new(SubMode.SUBSCRIBE)
    assert isinstance(ids, Ids)
    assert ids.service_id == service.service_id
    box = Mailbox(ids, signer, agree(ids.dh_key, private))
    sender.send(box, b"to a service")
    assert service.take(box) == b"to a service"

    again = connect(server, service=card)
    sub = again.ask(Sub(), box.recipient_id, signer, as_service=True)
    assert sub == Sok(service.service_id)
    service.event(End, box.recipient_id)
    assert isinstance(again.ask(Que(), box.recipient_id, signer), Info)
    assert again.fault(Que(), box.recipient_id, signer, as_service=True) is Code.SERVICE


def test_a_client_that_is_no_service_is_refused(
    connect: Connect, server: QueueServer, tmp_path: Path, card: ServiceCard
) -> None:
    """Another role than before, another chain than in TLS, none in TLS, a key of somebody else."""
    connect(server, service=card)
    card.role = PROXY
    others = ServiceCard(tmp_path / "other", NOTIFIER)
    silent = ServiceCard(tmp_path / "silent", NOTIFIER)
    silent.shows_in_tls = False
    forged = ServiceCard(tmp_path / "forged", NOTIFIER)
    forged.leaf_key = others.leaf_key
    swapped = ServiceCard(tmp_path / "swapped", NOTIFIER)
    swapped.chain = others.chain

    for bad in (card, silent, forged, swapped):
        with pytest.raises(TurnedAwayError) as told:
            connect(server, service=bad)
        assert told.value.args == (BAD_SERVICE,)


def test_ordinary_clients_come_as_ever_with_or_without_a_certificate(
    connect: Connect, server: QueueServer, card: ServiceCard
) -> None:
    owner, sender = connect(server), connect(server)
    box = owner.create()
    sender.send(box, b"as ever" * 2000)

    assert owner.take(box) == b"as ever" * 2000
    assert sender.fault(Nsubs(), bytes(24), Signer()) is Code.SERVICE
    assert connect(server, version=8).ask(Ping()) == Pong()
    assert connect(server, version=15).ask(Ping()) == Pong()


def as_service(server: QueueServer, card: services.ServiceCard) -> QueueClient:
    return QueueClient(
        address_of(server),
        settings=ConnectionSettings(service=card, backoff_max_s=0.5),
        tls=client_context(any_suite=True),
    )


async def test_our_client_is_a_service_and_goes_on_after_a_reconnect(
    server: QueueServer, tmp_path: Path
) -> None:
    """The codec of the client was written by another hand than the server's."""
    ServiceCard(tmp_path / "service", NOTIFIER, length=2)  # its files
    files = (tmp_path / "service" / "server.crt", tmp_path / "service" / "server.key")
    card = services.ServiceCard.load(*files, "N")
    owner = QueueClient(address_of(server), tls=client_context(any_suite=True))
    served = as_service(server, card)
    async with owner, served:
        queue = await owner.add_notifier(await owner.create())
        assert queue.notifier is not None
        assert (await served.connected()).service is not None
        await served.subscribe_notifier(queue.notifier)
        await owner.send(SenderQueue(queue.sender_id), b"one", notify=True)
        assert isinstance(await soon(served.receive()), Notified)
        assert await served.subscribe_service() == 1
        await served.drop_connection()
        await served.connected()
        assert isinstance(await soon(owner.receive()), Received)
        await owner.send(SenderQueue(queue.sender_id), b"two", notify=True)
        told = await soon(served.receive())
        assert isinstance(told, Notified)

        async with as_service(server, card) as again:
            assert await again.subscribe_service(queue.notifier) == 1
            assert await soon(served.receive()) == ServiceTaken(1)
            await owner.send(SenderQueue(queue.sender_id), b"three", notify=True)
            assert isinstance(await soon(again.receive()), Notified)


async def test_our_client_does_not_come_again_when_it_is_refused(
    server: QueueServer, tmp_path: Path
) -> None:
    ServiceCard(tmp_path / "service", NOTIFIER)
    files = (tmp_path / "service" / "server.crt", tmp_path / "service" / "server.key")
    async with as_service(server, services.ServiceCard.load(*files, "N")) as first:
        await first.connected()
    async with as_service(server, services.ServiceCard.load(*files, "P")) as refused:
        with pytest.raises(services.ServiceRefusedError, match="BAD_SERVICE"):
            await refused.connected()
    async with QueueClient(address_of(server), tls=client_context(any_suite=True)) as plain:
        with pytest.raises(BadBytesError, match="only a service"):
            await plain.subscribe_service()
