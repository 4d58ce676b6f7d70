"""Services: clients with a certificate, and which commands they may send (§2.8).

Rule 1: a service keeps the role of its first connection. A notifier subscribes to notifiers, a
        proxy forwards commands of others, a messaging service sends everything else.
Rule 2: NEW, SUB and NSUB of a service carry the proof of the service beside that of the queue's
        key. No other command and no other client carries it.
Rule 3: a violation is answered before any queue is looked up, so the answer reveals nothing about
        queues.
"""

import secrets
from typing import Final

import msgspec

from waystation.queue.errors import Code, Fault
from waystation.queue.model import (
    ID_BYTES,
    AuthKey,
    Fingerprint,
    Service,
    ServiceId,
    ServiceRole,
    SubMode,
)
from waystation.queue.store import QueueStore
from waystation.queue.wire.commands import Command, New, Nsub, Nsubs, Party, Ping, Rfwd, Sub, Subs
from waystation.queue.wire.services import BadServiceError, ServiceClaim
from waystation.queue.wire.transmission import Transmission

_PROVEN: Final = (New, Sub, Nsub)


class ServiceSession(msgspec.Struct, frozen=True, gc=False):
    """The service of a connection."""

    service_id: ServiceId
    role: ServiceRole
    fingerprint: Fingerprint  # signed before the command by the keys of its queues
    key: AuthKey


class Registry:
    """Admits services."""

    def __init__(self, store: QueueStore, *, services_max: int) -> None:
        self._store = store
        self._services_max = services_max

    async def admit(self, claim: ServiceClaim) -> ServiceSession:
        """Raises `BadServiceError` if the role differs from the first time, or if there are too
        many services."""
        drawn = Service(ServiceId(secrets.token_bytes(ID_BYTES)), claim.role)
        service = await self._store.register_service(
            claim.fingerprint, drawn, limit=self._services_max
        )
        if service is None or service.role is not claim.role:
            raise BadServiceError
        return ServiceSession(service.service_id, claim.role, claim.fingerprint, claim.key)


def out_of_place(sent: Transmission, service: ServiceSession | None) -> Fault | None:
    """The fault of a command that this connection may not send, whatever its queue."""
    command = sent.command
    has_proof = sent.service_proof is not None
    if service is None:
        alone = not has_proof and command.party is not Party.SERVICE
        return None if alone else Code.SERVICE
    role = _role_of(command)
    if role is not None and role is not service.role:
        return Code.CMD_PROHIBITED
    if has_proof != isinstance(command, _PROVEN):
        return Code.SERVICE
    match command:
        case Subs():
            return Code.CMD_PROHIBITED  # as deployed servers answer (§2.8)
        case Nsubs():
            return None if sent.entity_id == service.service_id else Code.SERVICE
        case New(sub_mode=SubMode.CREATE):
            return Code.CMD_PROHIBITED
        case _:
            return None


def _role_of(command: Command) -> ServiceRole | None:
    """The role that a command needs; None: any."""
    match command:
        case Ping():
            return None
        case Nsub() | Nsubs():
            return ServiceRole.NOTIFIER
        case Rfwd():
            return ServiceRole.PROXY
        case _:
            return ServiceRole.MESSAGING
