"""Who may do what: from a command to the queue it names and the keys that may have signed it.

The steps are those of §5.1.

Rule 1: no such queue, a wrong key, a key of another kind, a queue that may not be used this way:
        all are `AUTH`, and all cost one check of the proof that was presented.
Rule 2: a blocked queue says so to whoever proved that it is theirs, except to OFF, DEL and NSUB.
"""

from typing import Final

import msgspec

from waystation.queue.errors import Blocked, Code, Fault
from waystation.queue.model import AuthKey, DhPrivateKey, Queue, QueueMode, Standing
from waystation.queue.server.checks import Proof
from waystation.queue.store import Party, QueueStore
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
_NOBODY: Final[tuple[AuthKey, ...]] = ()


class Case(msgspec.Struct, frozen=True):
    """A command on its way: `keys` may have given its proof, unless it is refused anyway."""

    transmission: Transmission
    queue: Queue | None = None
    keys: tuple[AuthKey, ...] = ()
    refused: Fault | None = None

    def to_check(self, session_key: DhPrivateKey | None) -> Proof | None:
        """None if nothing was presented, or nothing needs to be known about it."""
        sent = self.transmission
        if not sent.proof or self.refused is Code.SERVICE:
            return None
        return Proof(self.keys, sent.proof, sent.authorized, sent.corr_id, session_key)

    def verdict(self, *, proven: bool) -> Fault | None:
        """Why it is refused, or None. `proven` says what became of `to_check`."""
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


async def look_up(store: QueueStore, transmission: Transmission) -> Case:
    """The queue that a command is about, and what its proof is to be held against."""
    command = transmission.command
    if transmission.service_proof is not None or command.party is commands.Party.SERVICE:
        return Case(transmission, refused=Code.SERVICE)  # we ask nobody for a certificate (§2.8)
    if isinstance(command, New):
        return Case(transmission, keys=(command.recipient_key,))
    party = _PARTIES.get(command.party)
    if party is None:
        return Case(transmission)
    queue = await store.find(party, transmission.entity_id)
    keys = None if queue is None else _keys(command, queue, has_proof=bool(transmission.proof))
    if keys is None:
        return Case(transmission, queue, _NOBODY, Code.AUTH)
    return Case(transmission, queue, keys)


def _keys(command: Command, queue: Queue, *, has_proof: bool) -> tuple[AuthKey, ...] | None:
    """None if this may not be done to this queue, whoever asks."""
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
