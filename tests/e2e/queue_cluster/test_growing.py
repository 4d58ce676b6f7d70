"""One queue server becomes a cluster under one address, by docs/guides/queue-cluster.md.

By its commands alone, while clients are connected: they write all the time, and every address that
was made before (queues, invitations, contact addresses, notifiers) still works after every slot
that has to do with it has moved twice.
"""

import asyncio
import contextlib
import itertools
import random
import re
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec
import pytest

from tests.e2e.platform import BIN, PORTS, Serve, clean_environment, until
from tests.e2e.queue.exchange import create_queue
from tests.ports import free_ports
from waystation.client.queue.address import ServerAddress
from waystation.client.queue.client import QueueClient
from waystation.client.queue.connection import (
    ConnectionSettings,
    NotConnectedError,
    OutcomeUnknownError,
)
from waystation.client.queue.error_replies import TemporaryError
from waystation.client.queue.events import Notified, Received
from waystation.client.queue.keys import PrivateKey
from waystation.client.queue.queue_secrets import RecipientQueue, SenderQueue
from waystation.client.queue.tls import client_context
from waystation.queue.model import SLOTS, slot_of

pytestmark = pytest.mark.e2e

T = TypeVar("T")
TLS = client_context(any_suite=True)
SERVERS = 3
CLIENTS = 4
PATIENCE_S = 90.0
MOVES_LIMIT_S = 1500  # of one command: a whole cluster's slots move within minutes
LINK_PORT, QUEUE_PORT = 7, 4  # after the base of a server's ports
KINDS = ("plain", "secured", "notifying", "invitation", "contact", "contact")
LATER = (NotConnectedError, OutcomeUnknownError, TemporaryError)


class Site:
    """The machines: one server, then three and an edge. Every step is a command of the product."""

    def __init__(self, root: Path, **settings: Any) -> None:
        self._root = root
        self._bases = free_ports(PORTS * 4)
        self._settings = settings
        self._stack = contextlib.ExitStack()
        self._port = self._base(1) + QUEUE_PORT
        self._plans = itertools.count()
        self._chance = random.Random(1)
        self.server = self._serve("node-1", 1, ("queue",))
        self.server.start()
        self.address = ServerAddress.parse(self.server.addresses["queue_address"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _base(self, number: int) -> int:
        return self._bases + PORTS * number

    def _serve(self, folder: str, number: int, roles: tuple[str, ...], **settings: object) -> Serve:
        made = Serve(
            self._root / folder,
            roles=roles,
            port_base=self._base(number),
            queue__drain_s=0.1,
            edge__drain_s=0.1,
            queue__identity_algorithm="ed25519",
            **{**self._settings, **settings},
        )
        self._stack.callback(made.close)
        return made

    def cluster(self, command: str, *words: str, member: str = "node-1", wait_s: int = 60) -> str:
        done = subprocess.run(
            [BIN / "waystation", "cluster", command, "--data-dir", self._root / member, *words],
            env=clean_environment(),
            capture_output=True,
            text=True,
            timeout=wait_s,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    # The way in docs/guides/queue-cluster.md, step by step

    def make_cluster(self) -> None:
        link = f"127.0.0.1:{self._base(1) + LINK_PORT}"
        self.cluster("init", "--store", f"embedded://{self._root / 'map'}", "--link", link)
        for words in (("--edge", "--out", self._token("edges")), ("--out", self._token("servers"))):
            self.cluster("token", *words)

    def prepare_edge(self) -> None:
        words = ("--edge", "--token-file", self._token("edges"))
        self.cluster("join", *words, member="edge")

    def change_places(self) -> None:
        self.server.stop()
        self.first = self._serve("node-1", 1, ("queue", "controller"))
        edge = self._serve("edge", 0, ("edge",), edge__port=self._port)
        self.first.start()
        edge.start()
        assert ServerAddress.parse(edge.addresses["queue_address"]) == self.address

    def wait_for_references(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while "writes the references" in self.cluster("status"):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        until(lambda: any("cluster.references" in line for line in self.first.lines))

    def add_server(self, number: int) -> None:
        link = f"127.0.0.1:{self._base(number) + LINK_PORT}"
        words = ("--token-file", self._token("servers"), "--link", link)
        self.cluster("join", *words, member=f"node-{number}")
        self._serve(f"node-{number}", number, ("queue",)).start()
        # Ready is not yet up: the controller marks a server up when it sees its lease.
        row = re.compile(rf"^\s+{number}\s+\d+\s+up\b", re.MULTILINE)
        until(lambda: row.search(self.cluster("status")) is not None)

    def _token(self, name: str) -> str:
        return str(self._root / f"{name}.token")

    def owners(self) -> list[int]:
        """By the grid of `cluster status`."""
        lines = self.cluster("status", "--grid").splitlines()[-64:]
        return [int(mark) for line in lines for mark in line.split()[1]]

    def give_shares(self) -> None:
        said = self.cluster("add", "--wait", wait_s=MOVES_LIMIT_S)
        assert said.splitlines()[-1] == "2,730 of 2,730 slots have moved"

    def move_all(self, slots: Iterable[int]) -> None:
        """Each to one of the other servers, as one plan."""
        owners, moves = self.owners(), list[dict[str, int]]()
        for slot in sorted(set(slots)):
            # A queue and an id that leads to it must not stay together by chance.
            target = (owners[slot] + self._chance.randrange(2)) % SERVERS + 1
            moves.append({"slot": slot, "source": owners[slot], "target": target})
        plan = self._root / f"plan-{next(self._plans)}.json"
        plan.write_bytes(msgspec.json.encode({"form": "waystation-plan/1", "moves": moves}))
        self.cluster("move", "--plan", str(plan), "--wait", wait_s=MOVES_LIMIT_S)
        after = self.owners()
        assert all(after[move["slot"]] == move["target"] for move in moves)


class Owner:
    """A client with its queues, connected from the beginning to the end."""

    def __init__(self, client: QueueClient) -> None:
        self.client = client
        self.taken: dict[bytes, list[bytes]] = {}
        self.notified: set[bytes] = set()

    async def take(self) -> None:
        while True:
            event = await self.client.receive()
            if isinstance(event, Notified):
                self.notified.add(event.notifier.notifier_id)
                continue
            assert isinstance(event, Received), event  # neither Taken nor SubscriptionFailed
            bodies = self.taken.setdefault(event.queue.recipient_id, [])
            if event.body not in bodies:  # an answer to its SEND was lost, and it was sent again
                bodies.append(event.body)
            await self.client.ack(event)


class Address(msgspec.Struct):
    """What somebody was given before there was a cluster, and what came of using it."""

    kind: str
    owner: Owner
    queue: RecipientQueue
    key: PrivateKey | None = None  # whoever secured it
    sent: list[bytes] = []

    @property
    def slots(self) -> set[int]:
        """Of the queue, and of the ids that lead to it."""
        queue = self.queue
        ids = [queue.recipient_id, queue.sender_id]
        if queue.link is not None:
            ids.append(queue.link.link_id)
        if queue.notifier is not None:
            ids.append(queue.notifier.notifier_id)
        return {slot_of(one) for one in ids}

    async def use(self, friend: QueueClient) -> None:
        """As somebody does who has the address, until it is accepted."""
        there = SenderQueue(self.queue.sender_id, self.key)
        link = self.queue.link_address
        if link is not None and not (self.kind == "invitation" and self.sent):
            content, found = await until_done(lambda: friend.open_link(link, self.key))
            assert content.text == self.kind
            assert found.sender_id == there.sender_id
        body = b"%d" % len(self.sent)
        await until_done(lambda: friend.send(there, body, notify=self.kind == "notifying"))
        self.sent.append(body)

    @property
    def is_complete(self) -> bool:
        return self.owner.taken.get(self.queue.recipient_id, []) == self.sent

    @property
    def is_notified(self) -> bool:
        notifier = self.queue.notifier
        return notifier is None or notifier.notifier_id in self.owner.notified


async def until_done(step: Callable[[], Awaitable[T]]) -> T:
    """A command that may be said again; silence and "later" are answers while servers change."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await step()
            except LATER:
                await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def connected(address: ServerAddress) -> AsyncIterator[QueueClient]:
    settings = ConnectionSettings(
        patience_s=PATIENCE_S, connect_timeout_s=20.0, backoff_base_s=0.05, backoff_max_s=0.3
    )
    async with QueueClient(address, settings=settings, tls=TLS) as client:
        yield client


async def new_address(kind: str, owner: Owner, friend: QueueClient) -> Address:
    client = owner.client
    match kind:
        case "invitation":
            queue = await create_queue(client, link_text=kind)
            return Address(kind, owner, queue, PrivateKey.generate())
        case "contact":
            queue = await create_queue(client, mode="C", link_text=kind)
            return Address(kind, owner, queue)
        case "notifying":
            queue = await client.add_notifier(await create_queue(client))
            assert queue.notifier is not None
            await client.subscribe_notifier(queue.notifier)
            return Address(kind, owner, queue)
        case _:
            made = Address(kind, owner, await create_queue(client))
            if kind == "secured":
                made.key = PrivateKey.generate("x25519")
                await friend.secure_as_sender(SenderQueue(made.queue.sender_id, made.key))
            return made


async def grown(site: Site, count: int, *, everything: bool) -> list[Address]:
    """What became of so many addresses, when the slots that have to do with them moved twice; with
    `everything`, all slots, after the new servers were given their share."""
    async with contextlib.AsyncExitStack() as stack:
        owners = [
            Owner(await stack.enter_async_context(connected(site.address))) for _ in range(CLIENTS)
        ]
        friend = await stack.enter_async_context(connected(site.address))
        taking = [asyncio.create_task(owner.take()) for owner in owners]
        kinds, whose = itertools.cycle(KINDS), itertools.cycle(owners)
        addresses = [await new_address(next(kinds), next(whose), friend) for _ in range(count)]
        for address in addresses:
            if address.kind != "invitation":  # most of these are opened in the cluster only
                await address.use(friend)
        over = asyncio.Event()
        talkers = [one for one in addresses if one.kind in ("plain", "secured")][::2]
        others = [one for one in addresses if one not in talkers]
        talk = asyncio.create_task(talked(talkers, friend, over))

        for step in (site.make_cluster, site.prepare_edge, site.change_places):
            await asyncio.to_thread(step)
        await asyncio.to_thread(site.wait_for_references)
        for number in range(2, SERVERS + 1):
            await asyncio.to_thread(site.add_server, number)
        if everything:
            await asyncio.to_thread(site.give_shares)
        slots = set(range(SLOTS)) if everything else set.union(*(one.slots for one in addresses))
        unopened = [address for address in addresses if address.kind == "invitation"][::2]
        for move in range(2):
            await asyncio.to_thread(site.move_all, slots)
            for owner in owners:
                owner.notified.clear()  # what was heard before says nothing of now
            async with connected(site.address) as stranger:
                for address in others:
                    if move == 1 or address not in unopened:
                        await address.use(stranger)

        over.set()
        await talk
        for address in talkers:  # each once more, after the last move
            await address.use(friend)
        async with asyncio.timeout(PATIENCE_S):
            while not all(one.is_complete and one.is_notified for one in addresses):
                for task in taking:
                    if task.done():
                        await task
                await asyncio.sleep(0.05)
        for task in taking:
            task.cancel()

    return addresses


def check_all(addresses: list[Address]) -> None:
    """Everything that was answered OK came, in its order, and notifiers heard of theirs."""
    for address in addresses:
        assert address.sent, address.kind
        assert address.is_complete, address.kind
        assert address.is_notified


async def talked(addresses: list[Address], friend: QueueClient, over: asyncio.Event) -> None:
    """Somebody writes all the time, to one queue after the other."""
    for address in itertools.cycle(addresses):
        if over.is_set():
            return
        await address.use(friend)
        await asyncio.sleep(0.02)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with Site(tmp_path) as made:
        yield made


async def test_a_server_grows_into_a_cluster_and_every_address_still_works(site: Site) -> None:
    """Sixty queues; the slots that they and their ids lie in move twice."""
    addresses = await grown(site, 60, everything=False)

    check_all(addresses)


@pytest.mark.soak
async def test_a_thousand_addresses_work_after_all_slots_moved_twice(tmp_path: Path) -> None:
    with Site(tmp_path, controller__moves_per_node_max=16, controller__moves_max=24) as site:
        addresses = await grown(site, 1000, everything=True)

    check_all(addresses)
