"""The commands that services may send, and their notifiers, without a socket."""

import pytest

from tests.unit.queue.server.connected import Told
from waystation.base.clock import ManualClock
from waystation.queue.errors import Code, Fault
from waystation.queue.model import (
    AuthKey,
    CorrId,
    EntityId,
    Fingerprint,
    KeyKind,
    Message,
    MessageId,
    Queue,
    RecipientId,
    ServiceId,
    ServiceRole,
    SubMode,
)
from waystation.queue.server.checks import Proof, prove
from waystation.queue.server.ids import IdMaker
from waystation.queue.server.notifications import Notifications
from waystation.queue.server.notifiers import Notifiers
from waystation.queue.server.observer import NoObserver
from waystation.queue.server.services import Registry, ServiceSession, out_of_place
from waystation.queue.server.subscribers import Subscribers
from waystation.queue.store import Party
from waystation.queue.wire.commands import (
    Command,
    Get,
    New,
    Nsub,
    Nsubs,
    Ping,
    Rfwd,
    Send,
    Sub,
    Subs,
)
from waystation.queue.wire.responses import END, SUBSCRIBED, Ends, Err, Nmsg, Sok, Soks
from waystation.queue.wire.services import BadServiceError, ServiceClaim
from waystation.queue.wire.transmission import Transmission
from waystation.storage.memory.queue import MemoryQueueStore
from waystation.testing.conformance.queue_samples import new_key, new_notifier, new_queue

ID = ServiceId(b"s" * 24)
FINGERPRINT = Fingerprint(b"f" * 32)
NEW = New(new_key(), b"d" * 32, None, SubMode.SUBSCRIBE)  # pyright: ignore[reportArgumentType]
CREATE = New(new_key(), b"d" * 32, None, SubMode.CREATE)  # pyright: ignore[reportArgumentType]
PROHIBITED, SERVICE = Code.CMD_PROHIBITED, Code.SERVICE


def session(role: ServiceRole, service_id: ServiceId = ID) -> ServiceSession:
    return ServiceSession(service_id, role, FINGERPRINT, AuthKey(KeyKind.ED25519, b"k" * 32))


def sent(command: Command, *, proves: bool = False, entity_id: bytes = ID) -> Transmission:
    proof = b"p" * 64 if proves else None
    return Transmission(CorrId(b"c"), EntityId(entity_id), command, b"k" * 64, b"said", proof)


@pytest.mark.parametrize(
    "role, command, proves, fault",
    [
        (None, Sub(), False, None),
        (None, Sub(), True, SERVICE),
        (None, Nsubs(), False, SERVICE),
        ("N", Nsub(), True, None),
        ("N", Nsub(), False, SERVICE),
        ("N", Nsubs(), False, None),
        ("N", Nsubs(), True, SERVICE),
        ("N", Subs(), False, PROHIBITED),
        ("N", Sub(), True, PROHIBITED),
        ("N", Send(False, b""), False, PROHIBITED),
        ("N", Ping(), False, None),
        ("P", Rfwd(b""), False, None),
        ("P", Send(False, b""), False, PROHIBITED),
        ("M", NEW, True, None),
        ("M", NEW, False, SERVICE),
        ("M", CREATE, True, PROHIBITED),
        ("M", Sub(), True, None),
        ("M", Get(), False, None),
        ("M", Get(), True, SERVICE),
        ("M", Subs(), False, PROHIBITED),
        ("M", Nsub(), True, PROHIBITED),
        ("M", Rfwd(b""), False, PROHIBITED),
    ],
)
def test_the_commands_that_each_role_may_send(
    role: str | None, command: Command, proves: bool, fault: Fault | None
) -> None:
    service = None if role is None else session(ServiceRole(role))

    assert out_of_place(sent(command, proves=proves), service) is fault


def test_all_of_another_service_is_not_for_asking() -> None:
    asked = sent(Nsubs(), entity_id=b"t" * 24)

    assert out_of_place(asked, session(ServiceRole.NOTIFIER)) is SERVICE


def test_the_keys_of_queues_sign_the_fingerprint_and_the_service_does_not() -> None:
    seen: list[tuple[bytes, bytes]] = []

    def check(_keys: object, proof: bytes, authorized: bytes, *_: object) -> bool:
        seen.append((proof, authorized))
        return proof != b"bad"

    key, nobody = AuthKey(KeyKind.ED25519, b""), CorrId(b"")
    good = Proof((), b"good", b"said", nobody, None, FINGERPRINT, (key, b"own"))
    assert prove(good, check) is True
    assert seen == [(b"good", FINGERPRINT + b"said"), (b"own", b"said")]
    assert prove(good._replace(proof=b"bad"), check) is False
    assert prove(good._replace(service=(key, b"bad")), check) is None
    assert prove(good._replace(proof=b"bad", service=(key, b"bad")), check) is None


async def test_a_role_is_for_ever_and_so_many_services_come_in() -> None:
    registry = Registry(MemoryQueueStore(), services_max=1)
    claim = ServiceClaim(ServiceRole.NOTIFIER, FINGERPRINT, AuthKey(KeyKind.ED25519, b""))
    first = await registry.admit(claim)

    assert (await registry.admit(claim)).service_id == first.service_id
    for role, fingerprint in ((ServiceRole.PROXY, FINGERPRINT), (ServiceRole.NOTIFIER, b"g" * 32)):
        with pytest.raises(BadServiceError):
            await registry.admit(ServiceClaim(role, Fingerprint(fingerprint), claim.key))


class Desk:
    """Notifying, and what it stands on."""

    def __init__(self) -> None:
        self.store = MemoryQueueStore()
        self.subscribers = Subscribers()
        self.waiting = Notifications(total_max=10, per_notifier_max=10)
        self.notifiers = Notifiers(
            store=self.store,
            subscribers=self.subscribers,
            notifications=self.waiting,
            ids=IdMaker(hybrid=True),
            observer=NoObserver(),
            clock=ManualClock(),
        )

    async def queue(self) -> Queue:
        queue = new_queue(notifier=new_notifier())
        assert await self.store.create(queue)
        return queue

    async def now(self, queue: Queue) -> Queue:
        found = await self.store.find(Party.RECIPIENT, queue.recipient_id)
        assert found is not None
        return found

    async def announce(self, queue: Queue) -> None:
        notifier = (await self.now(queue)).notifier
        assert notifier is not None
        self.notifiers.announce(notifier, Message(MessageId(b"m" * 24), 1, True, b""))


def services(count: int = 2) -> list[Told]:
    made = [Told() for _ in range(count)]
    for one in made:
        one.service = session(ServiceRole.NOTIFIER)
    return made


async def test_waiting_notifications_go_to_a_service_that_subscribes() -> None:
    desk, (client, _) = Desk(), services()
    queue = await desk.queue()
    await desk.announce(queue)
    desk.notifiers.hand_over()
    assert client.service is not None
    answer = await desk.notifiers.serve(client, queue, client.service)
    desk.notifiers.hand_over()

    assert answer == Sok(ID)
    assert [type(response) for _, response in client.told] == [Nmsg]


async def test_notifications_of_a_disconnected_service_wait_for_its_next_connection() -> None:
    desk, (first, second) = Desk(), services()
    queue = await desk.queue()
    assert first.service is not None
    await desk.notifiers.serve(first, queue, first.service)
    first.gone = True
    desk.subscribers.leave(first)
    await desk.announce(queue)
    desk.notifiers.hand_over()
    assert desk.waiting.count == 1
    answer = await desk.notifiers.serve_all(second, first.service)
    desk.notifiers.hand_over()

    assert answer == Soks(1)
    assert first.told == []
    assert [type(response) for _, response in second.told] == [Nmsg]
    assert desk.waiting.count == 0


async def test_a_service_that_went_while_it_asked_takes_nothing_from_the_next() -> None:
    desk, (late, current) = Desk(), services()
    assert current.service is not None
    await desk.notifiers.serve_all(current, current.service)
    late.gone = True
    await desk.notifiers.serve_all(late, current.service)

    assert desk.subscribers.of_service(ID) is current
    assert current.told == []


async def test_sessions_of_a_service_and_others_tell_each_other_of_the_end() -> None:
    desk, (old, new) = Desk(), services()
    plain, queue = Told(), await desk.queue()
    assert old.service is not None
    assert queue.notifier is not None
    notifier_id = queue.notifier.notifier_id
    assert await desk.notifiers.subscribe(plain, queue) == SUBSCRIBED
    await desk.notifiers.serve(old, queue, old.service)
    assert plain.told == [(notifier_id, END)]
    await desk.notifiers.serve_all(new, old.service)
    assert old.told == [(ID, Ends(1))]
    await desk.notifiers.subscribe(plain, await desk.now(queue))

    assert new.told == [(notifier_id, END)]
    assert await desk.store.count_notifiers(ID) == 0


async def test_a_queue_that_is_gone_meanwhile_is_refused() -> None:
    desk, (client, _) = Desk(), services()
    queue = await desk.queue()
    await desk.store.delete(RecipientId(queue.recipient_id))
    assert client.service is not None

    refused = Err(Code.AUTH)
    assert await desk.notifiers.serve(client, queue, client.service) == refused
