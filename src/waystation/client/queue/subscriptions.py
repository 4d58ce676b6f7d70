"""Restores subscriptions after a reconnect, and subscribes a service to all of its notifiers."""

import asyncio

from waystation.base.errors import UnavailableError

from .answers import Refused, ServiceSubscribed
from .commands import Command, NotifierSub, ServiceNotifiers, Sub
from .connection import Connection
from .encoding import BadBytesError
from .error_replies import error_of
from .events import SubscriptionFailed
from .inbox import Inbox
from .queue_secrets import Notifier, RecipientQueue


async def restore(inbox: Inbox, connection: Connection) -> bool:
    """Restores every subscription, in as few blocks as possible; whether one that failed is an
    event for the caller."""
    asked: list[tuple[RecipientQueue | Notifier, bytes, Command]] = [
        (queue, queue.recipient_id, Sub()) for queue in inbox.queues.values()
    ]
    if not inbox.all_served:
        asked += [(one, one.notifier_id, NotifierSub()) for one in inbox.notifiers.values()]
    answers = await asyncio.gather(
        *(
            connection.ask(command, entity_id=entity_id, key=owner.key)
            for owner, entity_id, command in asked
        ),
        *([ask_for_all(connection)] if inbox.all_served else []),
        return_exceptions=True,
    )
    failed = False
    for (owner, entity_id, _), answer in zip(asked, answers, strict=False):
        if isinstance(answer, Refused):
            inbox.queues.pop(entity_id, None)
            inbox.notifiers.pop(entity_id, None)
            inbox.put(SubscriptionFailed(owner, error_of(answer.error_reply)))
            failed = True
    for answer in answers:
        if isinstance(answer, BaseException) and not isinstance(answer, UnavailableError):
            raise answer
    return failed


async def ask_for_all(connection: Connection) -> int:
    """As a service: how many notifiers it has. Raises `BadBytesError` without a service."""
    service = connection.session.service
    if service is None:
        raise BadBytesError(
            "only a service subscribes to all of its notifiers (ConnectionSettings)"
        )
    answer = await connection.ask(ServiceNotifiers(), entity_id=service.service_id, key=service.key)
    if isinstance(answer, Refused):
        raise error_of(answer.error_reply)
    if not isinstance(answer, ServiceSubscribed):
        raise BadBytesError("unexpected answer to NSUBS")
    return answer.count
