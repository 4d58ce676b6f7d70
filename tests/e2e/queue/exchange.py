"""Two clients exchange messages while their server is killed again and again.

What is checked, for each direction:

- every message is there, in the order in which it was sent;
- a message is there twice only if the answer to its SEND was lost and the sender sent it again,
  and never one message id twice;
- the server gives a message again only as long as it has not confirmed its ACK.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from waystation.client.queue.address import ServerAddress
from waystation.client.queue.client import QueueClient
from waystation.client.queue.connection import (
    ConnectionSettings,
    NotConnectedError,
    OutcomeUnknownError,
)
from waystation.client.queue.deliveries import Deliveries, Verdict
from waystation.client.queue.error_replies import QueueFullError, TemporaryError
from waystation.client.queue.events import QuotaReached, Received
from waystation.client.queue.keys import PrivateKey
from waystation.client.queue.queue_secrets import RecipientQueue, SenderQueue
from waystation.client.queue.tls import client_context


class Watched(Deliveries):
    """Notes what the server gave after it had confirmed an ACK."""

    def __init__(self) -> None:
        super().__init__()
        self.confirmed: set[bytes] = set()
        self.too_late: list[bytes] = []

    def arrived(self, recipient_id: bytes, message_id: bytes) -> Verdict:
        if message_id in self.confirmed:
            self.too_late.append(message_id)
        return super().arrived(recipient_id, message_id)


class Outcome(NamedTuple):
    """Of one direction."""

    numbers: list[int]  # as they were handed over
    message_ids: list[bytes]
    sent_again: set[int]  # because an answer was lost
    given_again: int  # by the server, and kept from the caller
    given_after_confirmation: list[bytes]
    unconfirmed: int  # ACKs whose answer was lost


class Person:
    def __init__(self, server: ServerAddress, count: int) -> None:
        self.client = QueueClient(
            server,
            settings=ConnectionSettings(patience_s=60, backoff_base_s=0.05, backoff_max_s=0.3),
            tls=client_context(any_suite=True),
        )
        self._watched = self.client._inbox.deliveries = Watched()
        self._count = count
        self._numbers: list[int] = []
        self._message_ids: list[bytes] = []
        self._sent_again: set[int] = set()
        self._unconfirmed = 0
        self.sent = 0

    async def send_all(self, queue: RecipientQueue, progress: Callable[[], None]) -> None:
        there = SenderQueue(queue.sender_id, PrivateKey.generate("x25519"))
        await self.client.secure_as_sender(there)
        while self.sent < self._count:
            try:
                await self.client.send(there, b"%d" % self.sent)
            except QueueFullError:
                await asyncio.sleep(0.01)  # it takes more once it was read empty
            except OutcomeUnknownError:
                self._sent_again.add(self.sent)
            except TemporaryError:  # of an edge whose server went away with the command, or without
                self._sent_again.add(self.sent)
                await asyncio.sleep(0.05)
            except NotConnectedError:
                pass
            else:
                self.sent += 1
                progress()

    async def receive_all(self) -> None:
        while not self._numbers or self._numbers[-1] != self._count - 1:
            event = await self.client.receive()
            if isinstance(event, QuotaReached):
                continue
            assert isinstance(event, Received), event
            self._numbers.append(int(event.body))
            self._message_ids.append(event.message_id)
            if await self.client.ack(event):
                self._watched.confirmed.add(event.message_id)
            else:
                self._unconfirmed += 1

    def outcome(self, sender: "Person") -> Outcome:
        return Outcome(
            self._numbers,
            self._message_ids,
            sender._sent_again,
            self.client.repeated,
            self._watched.too_late,
            self._unconfirmed,
        )


async def exchange(
    server: ServerAddress, count: int, disturbances: Sequence[Callable[[], Awaitable[None]]]
) -> list[Outcome]:
    """`count` messages each way; the disturbances come evenly spread over the sending."""
    one, other = Person(server, count), Person(server, count)
    progressed = asyncio.Event()

    async def disturb() -> None:
        for number, disturbance in enumerate(disturbances, 1):
            threshold = 2 * count * number // (len(disturbances) + 1)
            while one.sent + other.sent < threshold:
                await progressed.wait()
                progressed.clear()
            await disturbance()

    async with one.client, other.client:
        queues = [await create_queue(person.client) for person in (one, other)]
        async with asyncio.TaskGroup() as group:
            group.create_task(one.send_all(queues[1], progressed.set))
            group.create_task(other.send_all(queues[0], progressed.set))
            group.create_task(one.receive_all())
            group.create_task(other.receive_all())
            group.create_task(disturb())
    return [one.outcome(other), other.outcome(one)]


async def create_queue(client: QueueClient, **how: Any) -> RecipientQueue:
    """NEW is not repeated by itself, and an edge may hang up when a server is slow: a person asks
    again."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await client.create(**how)
            except (NotConnectedError, OutcomeUnknownError):
                continue


def check_outcome(outcome: Outcome, count: int) -> None:
    assert sorted(set(outcome.numbers)) == list(range(count)), "lost"
    assert outcome.numbers == sorted(outcome.numbers), "out of order"
    twice = {number for number, _ in _repeated(outcome.numbers)}
    assert twice <= outcome.sent_again, "doubled by the server"
    assert len(set(outcome.message_ids)) == len(outcome.message_ids), "handed over twice"
    assert outcome.given_after_confirmation == [], "given again after its ACK was confirmed"


def _repeated(numbers: list[int]) -> list[tuple[int, int]]:
    counts = ((number, len(list(same))) for number, same in itertools.groupby(numbers))
    return [(number, times) for number, times in counts if times > 1]
