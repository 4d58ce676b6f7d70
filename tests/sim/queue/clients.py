"""Clients of the simulated queue cluster, and a record of what each of them was told.

They connect to any edge, send commands, wait, and reconnect when they are cut off. A client that
gets a wrong answer reports it.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.sim.queue.edges import VERSION, Connection, GoneError
from tests.sim.queue.servers import id_in
from waystation.queue import model
from waystation.queue.errors import TRY_LATER, Code
from waystation.queue.model import (
    AuthKey,
    BoxKey,
    CorrId,
    EntityId,
    KeyKind,
    Link,
    LinkData,
    LinkId,
    Notifier,
    NotifierId,
    QueueMode,
    RecipientId,
    SenderId,
    Slot,
    SubMode,
    sender_id_from,
    slot_of,
)
from waystation.queue.wire.boxes import agree, new_dh_pair
from waystation.queue.wire.commands import (
    Ack,
    Command,
    Del,
    Lget,
    New,
    NewLink,
    NewNotifier,
    Nsub,
    Send,
    Sub,
    encode_command,
)
from waystation.queue.wire.delivery import decrypt_message
from waystation.queue.wire.responses import (
    End,
    Err,
    Ids,
    Lnk,
    Msg,
    NewNotifierIds,
    Ok,
    Response,
    Sok,
)
from waystation.queue.wire.transmission import authorized_bytes, encode_transmission

if TYPE_CHECKING:
    from tests.sim.queue.world import EdgeWorld

ANSWER_S = 40.0  # longer than an edge lets anybody wait
BATCH_MAX = 3  # commands in one block
WINDOW = 12  # under way
DATA = LinkData(b"fixed", b"user")


class Signer:
    def __init__(self, chance: random.Random) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(chance.randbytes(32))
        self.public = AuthKey(KeyKind.ED25519, self._key.public_key().public_bytes_raw())

    def prove(self, authorized: bytes) -> bytes:
        return self._key.sign(authorized)


class SmpClient:
    """A client that reconnects to some edge whenever it is cut off."""

    def __init__(self, world: "EdgeWorld", name: str) -> None:
        self.world = world
        self.name = name

    async def live(self) -> None:
        world = self.world
        while not world.is_over:
            edge = world.some_edge()
            if edge is None:
                await asyncio.sleep(0.2)
                continue
            try:
                connection = await Connection.to(world, edge)
                try:
                    await self.use(connection)
                finally:
                    connection.leave()
            except GoneError:
                world.say(f"{self.name} was cut off")
            await asyncio.sleep(world.chance.uniform(0.05, 0.5))

    async def use(self, connection: Connection) -> None:
        raise AssertionError("a person says how")

    def transmission(
        self,
        connection: Connection,
        command: Command,
        entity_id: bytes = b"",
        signer: Signer | None = None,
        corr_id: bytes | None = None,
    ) -> tuple[bytes, bytes]:
        corr = CorrId(corr_id or self.world.chance.randbytes(24))
        said, dialect = encode_command(command, VERSION), connection.dialect
        proof = b""
        if signer is not None:
            authorized = authorized_bytes(corr, EntityId(entity_id), said, dialect)
            proof = signer.prove(authorized)
        return corr, encode_transmission(corr, EntityId(entity_id), said, dialect, proof)

    async def ask(
        self,
        connection: Connection,
        command: Command,
        entity_id: bytes = b"",
        signer: Signer | None = None,
        corr_id: bytes | None = None,
    ) -> Response:
        said = self.transmission(connection, command, entity_id, signer, corr_id)
        return await self.answer(connection.say([said])[0], command)

    async def answer(self, waiting: "asyncio.Future[Response]", command: Command) -> Response:
        done, _ = await asyncio.wait([waiting], timeout=ANSWER_S)
        if not done:
            self.world.complain(f"{self.name}: {type(command).__name__} was never answered")
        return waiting.result()

    def expect(self, holds: bool, what: str) -> None:
        if not holds:
            self.world.complain(f"{self.name}: {what}")


class Queue:
    """What its recipient and its sender know."""

    def __init__(self, ids: Ids, signer: Signer, box_key: BoxKey) -> None:
        self.ids = ids
        self.signer = signer
        self.box_key = box_key
        self.sent = 0
        self.accepted: dict[int, float] = {}  # bodies whose OK arrived, and when
        self.delivered: list[int] = []  # as first seen
        self.acked: set[int] = set()  # whose ACK was answered


class Recipient(SmpClient):
    """Makes one queue and takes what comes in it."""

    def __init__(
        self, world: "EdgeWorld", name: str, on_made: Callable[["Recipient"], None]
    ) -> None:
        super().__init__(world, name)
        self.queue: Queue | None = None
        self.notifier_signer = Signer(world.chance)
        self._on_made = on_made
        self._acks: dict[bytes, int] = {}  # correlation ids of ACKs under way, and what of
        self._by_sub = world.chance.random() < 0.5

    async def use(self, connection: Connection) -> None:
        connection.on_heard = self._heard
        self._acks.clear()
        if self.queue is None:
            await self._create(connection)
            if self._by_sub:
                await self._subscribe(connection)
        else:
            await self._subscribe(connection)
        while True:
            event = await connection.events.get()
            if event is None:
                raise GoneError
            entity_id, response = event
            self.expect(not isinstance(response, End), "END, though nobody else subscribed")
            if isinstance(response, Msg) and entity_id == self._queue.ids.recipient_id:
                await self._take(connection, response)

    @property
    def _queue(self) -> Queue:
        assert self.queue is not None
        return self.queue

    async def _create(self, connection: Connection) -> None:
        chance = self.world.chance
        signer, (public, private) = Signer(chance), new_dh_pair()
        notifier = NewNotifier(self.notifier_signer.public, new_dh_pair()[0])
        mode = SubMode.CREATE if self._by_sub else SubMode.SUBSCRIBE
        command = New(signer.public, public, None, mode, QueueMode.MESSAGING, None, notifier)
        ids = await self.ask(connection, command, b"", signer)
        self.expect(isinstance(ids, Ids), f"NEW was answered {ids}")
        assert isinstance(ids, Ids)
        self.queue = Queue(ids, signer, agree(ids.dh_key, private))
        self.world.say(f"{self.name} has a queue in slot {slot_of(ids.recipient_id)}")
        self._on_made(self)

    async def _subscribe(self, connection: Connection) -> None:
        queue = self._queue
        answer = await self.ask(connection, Sub(), queue.ids.recipient_id, queue.signer)
        if isinstance(answer, Msg):
            await self._take(connection, answer)
        else:
            self.expect(isinstance(answer, Sok | Ok), f"SUB was answered {answer}")

    def _heard(self, corr_id: bytes, entity_id: bytes, response: Response) -> None:
        queue = self.queue
        if queue is None or entity_id != queue.ids.recipient_id:
            return
        acknowledged = self._acks.pop(corr_id, None)
        if acknowledged is not None and isinstance(response, Ok | Msg):
            queue.acked.add(acknowledged)
        if isinstance(response, Msg):
            body = self._body(response)
            self.expect(body not in queue.acked, f"message {body} came again after its ACK")
            if body not in queue.delivered:
                queue.delivered.append(body)

    def _body(self, msg: Msg) -> int:
        message = decrypt_message(self._queue.box_key, msg.message_id, msg.encrypted)
        assert message.body is not None
        return int(message.body)

    async def _take(self, connection: Connection, answer: Response) -> None:
        """A message, and those that follow its acknowledgement."""
        queue = self._queue
        recipient_id = queue.ids.recipient_id
        while isinstance(answer, Msg):
            if self.world.chance.random() < 0.3:
                await asyncio.sleep(self.world.chance.uniform(0.0, 0.5))
            ack, body = Ack(answer.message_id), self._body(answer)
            was_acked = body in queue.acked
            said = self.transmission(connection, ack, recipient_id, queue.signer)
            self._acks[said[0]] = body
            answer = await self.answer(connection.say([said])[0], ack)
            # NO_MSG: it was delivered twice, and this is the second ACK. Nothing else allows it.
            known = isinstance(answer, Ok | Msg) or (was_acked and answer == Err(Code.NO_MSG))
            self.expect(known, f"ACK of {body} was answered {answer}")


class Sender(SmpClient):
    """Sends to one queue without waiting for answers, up to a window; knows what was accepted."""

    def __init__(self, world: "EdgeWorld", name: str, queue: Queue) -> None:
        super().__init__(world, name)
        self._queue = queue

    async def use(self, connection: Connection) -> None:
        world = self.world
        waiting: deque[tuple[int, float, asyncio.Future[Response]]] = deque()
        while not world.is_over:
            if world.may_send and len(waiting) <= WINDOW - BATCH_MAX:
                self._send(connection, waiting)
            while waiting and waiting[0][2].done():
                body, _, answer = waiting.popleft()
                self._answered(body, answer.result())
            if waiting and world.clock.mono() - waiting[0][1] > ANSWER_S:
                self.expect(False, f"SEND of {waiting[0][0]} was never answered")
            if not connection.is_open:
                raise GoneError
            await asyncio.sleep(world.chance.expovariate(4.0))

    def _send(
        self,
        connection: Connection,
        waiting: deque[tuple[int, float, "asyncio.Future[Response]"]],
    ) -> None:
        """One block. A body is sent once: what was not answered is told from what was."""
        queue, mono = self._queue, self.world.clock.mono()
        first = queue.sent + 1
        bodies = range(first, first + self.world.chance.randint(1, BATCH_MAX))
        queue.sent = bodies[-1]
        said = [
            self.transmission(connection, Send(False, b"%d" % body), queue.ids.sender_id)
            for body in bodies
        ]
        answers = connection.say(said)
        waiting.extend((body, mono, one) for body, one in zip(bodies, answers, strict=True))

    def _answered(self, body: int, answer: Response) -> None:
        self.expect(answer in (Ok(), Err(TRY_LATER)), f"SEND of {body} was answered {answer}")
        if answer == Ok():
            self._queue.accepted[body] = self.world.clock.mono()


class NotifierClient(SmpClient):
    """Subscribes to a queue's notifications, through any edge."""

    def __init__(self, world: "EdgeWorld", name: str, recipient: Recipient) -> None:
        super().__init__(world, name)
        self._recipient = recipient

    async def use(self, connection: Connection) -> None:
        queue = self._recipient.queue
        assert queue is not None
        assert queue.ids.notifier is not None
        notifier_id = queue.ids.notifier.notifier_id
        answer = await self.ask(connection, Nsub(), notifier_id, self._recipient.notifier_signer)
        self.expect(isinstance(answer, Sok | Ok), f"NSUB was answered {answer}")
        await asyncio.sleep(self.world.chance.expovariate(0.3))


class ContactOwner(SmpClient):
    """Creates a contact address under an id of its own, deletes it and creates it again."""

    def __init__(self, world: "EdgeWorld", name: str) -> None:
        super().__init__(world, name)
        self.link_id = LinkId(id_in(world.chance.choice(world.slots), world.chance))
        self.sender_id: SenderId | None = None  # while the address stands for sure
        self.is_unsure = False  # something was begun whose end nobody heard
        self.made = 0
        self._signer = Signer(world.chance)
        self._ids: Ids | None = None

    async def use(self, connection: Connection) -> None:
        world = self.world
        while not world.is_over:
            if self._ids is None:
                await self._make(connection)
            elif world.chance.random() < 0.3 and not world.calm:
                await self._take_away(connection)
            await asyncio.sleep(world.chance.expovariate(0.5))

    def _corr_id(self) -> bytes:
        """One whose sender id lies in a slot of this world."""
        while True:
            corr_id = self.world.chance.randbytes(24)
            if slot_of(sender_id_from(corr_id)) in self.world.slots:
                return corr_id

    async def _make(self, connection: Connection) -> None:
        corr_id = self._corr_id()
        sender_id = sender_id_from(corr_id)
        command = New(
            self._signer.public,
            new_dh_pair()[0],
            None,
            SubMode.CREATE,
            QueueMode.CONTACT,
            NewLink(sender_id, DATA, self.link_id),
        )
        was_unsure, self.is_unsure = self.is_unsure, True
        answer = await self.ask(connection, command, b"", self._signer, corr_id)
        if isinstance(answer, Ids):
            self._ids, self.sender_id = answer, sender_id
            self.made += 1
            self.is_unsure = False
        elif answer == Err(Code.AUTH) and (was_unsure or self.made):
            # An address that nobody heard of, or a reference that is not removed yet: another id.
            self.link_id = LinkId(
                id_in(self.world.chance.choice(self.world.slots), self.world.chance)
            )
            self.is_unsure = False
        else:
            self.expect(False, f"NEW of a contact was answered {answer}")

    async def _take_away(self, connection: Connection) -> None:
        assert self._ids is not None
        recipient_id, self.sender_id = self._ids.recipient_id, None
        self.is_unsure = True
        answer = await self.ask(connection, Del(), recipient_id, self._signer)
        # The first try may have been done, though nobody heard.
        self.expect(answer in (Ok(), Err(Code.AUTH)), f"DEL was answered {answer}")
        self._ids = None


class OlderAddress:
    """A contact address from before the cluster. It stands for ever."""

    def __init__(self, queue: model.Queue) -> None:
        assert queue.link is not None
        self.link_id = queue.link.link_id
        self.sender_id: SenderId | None = queue.sender_id
        self.made = 1


def older_queue(world: "EdgeWorld", slot: Slot, owner: Recipient | None) -> model.Queue:
    """As one server by itself made it: only its recipient's id must begin with its slot. Without
    an owner it is a contact address."""
    chance = world.chance

    def elsewhere() -> bytes:
        return id_in(chance.choice(world.slots), chance)

    signer = Signer(chance)
    queue = model.Queue(
        recipient_id=RecipientId(id_in(slot, chance)),
        recipient_keys=(signer.public,),
        box_key=BoxKey(chance.randbytes(32)),
        sender_id=SenderId(elsewhere()),
        mode=QueueMode.CONTACT if owner is None else QueueMode.MESSAGING,
        link=Link(LinkId(elsewhere()), DATA),
        notifier=None
        if owner is None
        else Notifier(
            NotifierId(elsewhere()), owner.notifier_signer.public, BoxKey(chance.randbytes(32))
        ),
    )
    if owner is not None:
        assert queue.notifier is not None
        dh_key = new_dh_pair()[0]
        notifier = NewNotifierIds(queue.notifier.notifier_id, dh_key)
        ids = Ids(queue.recipient_id, queue.sender_id, dh_key, queue.mode, None, None, notifier)
        owner.queue = Queue(ids, signer, queue.box_key)
    return queue


class LinkReader(SmpClient):
    """Opens a contact address through any edge, while it stands."""

    def __init__(self, world: "EdgeWorld", name: str, contact: ContactOwner | OlderAddress) -> None:
        super().__init__(world, name)
        self._contact = contact
        self.opened = 0

    async def use(self, connection: Connection) -> None:
        world, contact = self.world, self._contact
        for _ in range(world.chance.randint(1, 5)):
            before, made = contact.sender_id, contact.made
            may_wait = world.may_wait  # false after a quiet period: then no command may wait
            answer = await self.ask(connection, Lget(), contact.link_id)
            unchanged = (contact.sender_id, contact.made) == (before, made)
            may_wait = may_wait and answer == Err(TRY_LATER)
            if before is not None and unchanged and not may_wait:
                self.expect(answer == Lnk(before, DATA), f"LGET was answered {answer}")
                self.opened += 1
            await asyncio.sleep(world.chance.expovariate(1.0))
