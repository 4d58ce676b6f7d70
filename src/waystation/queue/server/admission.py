"""Decides whether a command is allowed: the queue it names, the keys that may sign it.

The steps are those of §5.1.

Rule 1: an unknown queue, a wrong key, a key of another kind and a queue in the wrong state are all
        answered with `AUTH`, and all cost one check of the presented proof. All other work is the
        same too: an unknown id is handled like a queue without an owner.
Rule 2: commands that a service may not send, or only with its own proof, are refused before any
        queue is looked up (`services`). An invalid proof of a service is `SERVICE`, whatever else
        is wrong.
Rule 3: a blocked queue is reported to its proven owner, except for OFF, DEL and NSUB.
"""

from typing import Final

import msgspec

from waystation.queue.errors import Blocked, Code, Fault
from waystation.queue.model import AuthKey, DhPrivateKey, Queue, QueueMode, Standing
from waystation.queue.server.checks import Proof, Proven
from waystation.queue.server.services import ServiceSession, out_of_place
from waystation.queue.store import NOBODYS_QUEUE, Party, QueueStore
from waystation.queue.wire import commands
from waystation.queue.wire.commands import Command, Del, Lget, Lkey, New, Nsub, Off, Send, Skey
from waystation.queue.wire.transmission import Transmission

_PARTIES: Final = {
    commands.Party.RECIPIENT: Party.RECIPIENT,
    commands.Party.SENDER: Party.SENDER,
    commands.Party.NOTIFIER: Party.NOTIFIER,
    commands.Party.LINK: Party.LINK,
}
_WHILE_BLOCKED: Final = (Off, Del, Nsub)
_WITHOUT_LOOKING: Final = (Code.SERVICE, Code.CMD_PROHIBITED)
_NOBODY: Final[tuple[AuthKey, ...]] = ()


class Case(msgspec.Struct, frozen=True):
    """A command after its look-up: one of `keys` must have signed it, unless it is refused."""

    transmission: Transmission
    queue: Queue | None = None
    keys: tuple[AuthKey, ...] = ()
    refused: Fault | None = None
    service: ServiceSession | None = None  # that must sign it as well

    def to_check(self, session_key: DhPrivateKey | None) -> Proof | None:
        """None if no proof was presented, or none is needed."""
        sent = self.transmission
        if not sent.proof or self.refused in _WITHOUT_LOOKING:
            return None
        service = self.service
        if service is None or sent.service_proof is None:
            return Proof(self.keys, sent.proof, sent.authorized, sent.corr_id, session_key)
        return Proof(
            self.keys,
            sent.proof,
            sent.authorized,
            sent.corr_id,
            session_key,
            service.fingerprint,
            (service.key, sent.service_proof),
        )

    def verdict(self, *, proven: Proven) -> Fault | None:
        """The fault to answer with, or None. `proven` is the result of `to_check`."""
        if proven is None:
            return Code.SERVICE
        if self.refused is not None:
            return self.refused
        if self.transmission.proof and not proven:
            return Code.AUTH
        queue = self.queue
        if queue is None or queue.standing is Standing.ACTIVE:
            return None
        command = self.transmission.command
        if queue.standing is Standing.BLOCKED and not isinstance(command, _WHILE_BLOCKED):
            assert queue.blocking is not None
            return Blocked(queue.blocking)
        return Code.AUTH if isinstance(command, Send) else None


async def look_up(
    store: QueueStore, transmission: Transmission, service: ServiceSession | None = None
) -> Case:
    """Finds the queue of a command and the keys for its proof."""
    command = transmission.command
    refused = out_of_place(transmission, service)
    if refused is not None:
        return Case(transmission, refused=refused)
    if isinstance(command, New):
        return Case(transmission, keys=(command.recipient_key,), service=service)
    if service is not None and command.party is commands.Party.SERVICE:
        return Case(transmission, keys=(service.key,), service=service)
    party = _PARTIES.get(command.party)
    if party is None:
        return Case(transmission)
    queue = await store.find(party, transmission.entity_id)
    keys = _keys(command, queue or NOBODYS_QUEUE, has_proof=bool(transmission.proof))
    if queue is None or keys is None:
        return Case(transmission, queue, _NOBODY, Code.AUTH, service)
    return Case(transmission, queue, keys, None, service)


def _keys(command: Command, queue: Queue, *, has_proof: bool) -> tuple[AuthKey, ...] | None:
    """None if no client may do this to this queue."""
    match command:
        case Send():
            if queue.sender_key is None:
                return None if has_proof else _NOBODY
            return (queue.sender_key,) if has_proof else None
        case Skey(key) | Lkey(key):
            securable = queue.mode is QueueMode.MESSAGING and queue.sender_key in (None, key)
            return (key,) if securable else None
        case Lget():
            if queue.mode is QueueMode.CONTACT:
                return _NOBODY
            return _NOBODY if queue.mode is None and queue.sender_key is None else None
        case Nsub():
            return None if queue.notifier is None else (queue.notifier.key,)
        case _:
            return queue.recipient_keys
