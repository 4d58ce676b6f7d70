"""Runs the commands of `waystation queue` with the client library.

SMP needs an OpenSSL configuration of its own: a process that was started without it replaces itself
by one that has it. A key is on disk before a queue is bound to it. A message is printed, then
recorded as handled, then acknowledged: a kill loses none, and repeats one only between the first
two steps.
"""

import os
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from .listen import keep_dir
from .queue_output import show_event, show_received
from .terminal import complain, give_up

if TYPE_CHECKING:
    from waystation.client.queue.address import LinkAddress, QueueAddress, ServerAddress
    from waystation.client.queue.client import QueueClient
    from waystation.client.queue.events import Event
    from waystation.client.queue.queue_file import QueueFile, SavedQueue, SavedQueues
    from waystation.client.queue.relay import Relay

T = TypeVar("T")

EXIT_GONE = 3
EXIT_BUSY = 75  # sysexits: try again later
PATIENCE_S = 10.0  # for a connection; `receive` waits out later breaks for as long as they last


def kept_file(state: Path | None) -> "QueueFile":
    from waystation.client.queue.queue_file import QueueFile

    return QueueFile(state or keep_dir() / "queues.json")


def guarded(call: Callable[[], T]) -> T:
    """Run a step that needs no server; its errors end the command."""
    from waystation.base.errors import WaystationError

    try:
        return call()
    except (WaystationError, OSError) as exc:
        give_up(str(exc))


def run(step: Callable[[], Coroutine[Any, Any, None]]) -> None:
    import asyncio

    from waystation.base.errors import BusyError, GoneError, UnavailableError, WaystationError
    from waystation.client.queue.connection import OutcomeUnknownError

    own_process()
    try:
        asyncio.run(step())
    except GoneError as exc:
        give_up(str(exc), EXIT_GONE)
    except OutcomeUnknownError as exc:
        give_up(f"{exc}; the server may have taken it, or not", EXIT_BUSY)
    except (BusyError, UnavailableError) as exc:
        give_up(str(exc), EXIT_BUSY)
    except (WaystationError, OSError) as exc:
        give_up(str(exc))


def own_process() -> None:
    """Rule 1."""
    from waystation.client.queue import tls

    if tls.is_set_up():
        return
    if os.environ.get("OPENSSL_CONF") == str(tls.CONF):
        give_up("this Python's OpenSSL does not read OPENSSL_CONF, and SMP cannot do without")
    command = [sys.executable, "-m", "waystation.cli.main", *sys.argv[1:]]
    os.execve(sys.executable, command, tls.environment())  # noqa: S606 our own command line


def client_of(server: "ServerAddress", patience_s: float = PATIENCE_S) -> "QueueClient":
    from waystation.client.queue.client import QueueClient
    from waystation.client.queue.connection import ConnectionSettings

    return QueueClient(server, settings=ConnectionSettings(patience_s=patience_s))


def server_of(text: str, kept: "SavedQueues", data_dir: Path) -> "ServerAddress":
    """The one that was named, that of the last queue, or the one that runs here."""
    import msgspec

    from waystation.client.queue.address import AddressError, ServerAddress

    if text:
        return ServerAddress.parse(text)
    if kept.queues:
        return list(kept.queues.values())[-1].queue.server
    try:
        text = (data_dir / "run" / "serve.json").read_text()
        serving = msgspec.json.decode(text, type=dict[str, Any])
        return ServerAddress.parse(str(serving["queue_address"]))
    except (OSError, KeyError, msgspec.MsgspecError) as exc:
        raise AddressError(
            "which server? Give --server smp://FINGERPRINT@HOST"
            f" (no queue server runs on {data_dir})"
        ) from exc


# sending


def via(server: "ServerAddress", proxy: str) -> "ServerAddress":
    from waystation.client.queue.address import ServerAddress

    return ServerAddress.parse(proxy) if proxy else server


def way(client: "QueueClient", server: "ServerAddress") -> "QueueClient | Relay":
    """Straight to the queue's server, or through the one that `client` is connected to."""
    from waystation.client.queue.relay import Relay

    same = client.server.fingerprint == server.fingerprint
    return client if same else Relay(client, server)


async def sender(file: "QueueFile", to: str, name: str, proxy: str) -> str:
    """The name under which we keep what `to` leads to."""
    from waystation.client.queue.address import LinkAddress, QueueAddress, is_link

    kept = file.load()
    if to in kept.senders:
        return to
    if is_link(to):
        return (await follow(file, LinkAddress.parse(to), name, proxy))[0]
    return keep_sender(file, QueueAddress.parse(to), name)


def keep_sender(file: "QueueFile", address: "QueueAddress", name: str) -> str:
    from waystation.client.queue.keys import PrivateKey
    from waystation.client.queue.queue_file import SavedSender
    from waystation.client.queue.queue_secrets import SenderQueue

    with file.changing() as kept:
        known = kept.sender_to(address)
        if known is not None:
            return known
        chosen = kept.claim(name or kept.free_name("contact"))
        key = PrivateKey.generate() if address.mode == "M" else None
        kept.senders[chosen] = SavedSender(
            address, SenderQueue(address.sender_id, key), PrivateKey.generate("x25519")
        )
    return chosen


def mark_secured(file: "QueueFile", name: str) -> None:
    import msgspec

    with file.changing() as kept:
        kept.senders[name] = msgspec.structs.replace(kept.senders[name], secured=True)


async def follow(file: "QueueFile", link: "LinkAddress", name: str, proxy: str) -> tuple[str, str]:
    """Opens a short link: the name we keep it under, and its text. The key that secures an
    invitation is kept before the server has it; asked again, the server takes the same one."""
    from waystation.client.queue.keys import PrivateKey
    from waystation.client.queue.queue_file import SavedSender

    with file.changing() as kept:
        if name:
            kept.claim(name)
        key = kept.opening.setdefault(str(link), PrivateKey.generate())
    async with client_of(via(link.server, proxy)) as client:
        content, opened = await way(client, link.server).open_link(link, key)
    with file.changing() as kept:
        kept.opening.pop(str(link), None)
        chosen = kept.sender_to(content.address)
        if chosen is None:
            chosen = kept.claim(name or kept.free_name("contact"))
            kept.senders[chosen] = SavedSender(
                content.address,
                opened,
                PrivateKey.generate("x25519"),
                secured=opened.key is not None,
            )
    return chosen, content.text


# receiving


async def receive(
    file: "QueueFile", names: Sequence[str], count: int, wait_s: float, *, json: bool
) -> None:
    import asyncio
    import contextlib

    from waystation.client.queue.queue_file import QueueFileError

    kept = file.load()
    chosen = {name: kept.queue(name) for name in names or kept.queues}
    if not chosen:
        raise QueueFileError("there is no queue to receive from: `waystation queue new` makes one")
    reading = _Reading(file, chosen, json=json)
    async with contextlib.AsyncExitStack() as stack:
        arrived: asyncio.Queue[tuple[QueueClient, Event]] = asyncio.Queue(1)
        pumps: list[asyncio.Task[None]] = []
        for server in reading.servers:
            client = await stack.enter_async_context(client_of(server))
            await reading.subscribe(client)
            pumps.append(asyncio.ensure_future(_pump(client, arrived)))
        reading.check()
        try:
            while not count or reading.count < count:
                async with asyncio.timeout(wait_s or None):
                    client, event = await arrived.get()
                await reading.take(client, event)
        except TimeoutError:
            return
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(client: "QueueClient", arrived: Any) -> None:
    async for event in client.events():
        await arrived.put((client, event))


class _Reading:
    def __init__(self, file: "QueueFile", chosen: "dict[str, SavedQueue]", *, json: bool) -> None:
        self._file = file
        self._chosen = chosen
        self._names = {one.queue.recipient_id: name for name, one in chosen.items()}
        self._json = json
        self._silent: dict[ServerAddress, Exception] = {}
        self.count = 0

    @property
    def servers(self) -> "list[ServerAddress]":
        return list(dict.fromkeys(one.queue.server for one in self._chosen.values()))

    async def subscribe(self, client: "QueueClient") -> None:
        """To the queues on this server. One that is refused is told and left out; a server that
        does not answer is waited for, as long as another one does."""
        from waystation.base.errors import UnavailableError, WaystationError

        for name, one in list(self._chosen.items()):
            if one.queue.server != client.server:
                continue
            if client.server in self._silent:
                client.follow(one.queue, one.acked)
                continue
            try:
                await client.subscribe(one.queue, acked=one.acked)
            except UnavailableError as exc:
                self._silent[client.server] = exc
            except WaystationError as exc:
                self._lost(name, "refused", str(exc))

    def check(self) -> None:
        """Once all servers were asked."""
        if len(self._silent) == len(self.servers):
            raise next(iter(self._silent.values()))
        for problem in self._silent.values():
            complain(f"{problem}; waiting for it")

    async def take(self, client: "QueueClient", event: "Event") -> None:
        from waystation.client.queue.events import (
            Gone,
            Notified,
            QuotaReached,
            Received,
            ServiceTaken,
            SubscriptionFailed,
            Taken,
            Unreadable,
        )
        from waystation.client.queue.queue_secrets import Notifier

        if isinstance(event, Notified | ServiceTaken) or isinstance(event.queue, Notifier):
            return  # nobody subscribes notifiers here
        name = self._names.get(event.queue.recipient_id)
        if name is None:
            return  # lost before
        match event:
            case Received():
                show_received(name, event, json=self._json, named=len(self._chosen) > 1)
                self.count += 1
                self._handled(name, event.message_id)
                await client.ack(event)
            case Unreadable(_, message_id, problem):
                show_event(
                    name, "unreadable", f"a message does not open: {problem}", json=self._json
                )
                self._handled(name, message_id)
                await client.ack(event)
            case QuotaReached():
                text = "it was full; the sender was refused meanwhile"
                show_event(name, "quota", text, json=self._json)
            case Taken():
                self._lost(name, "taken", "somebody else with the same keys receives it now")
            case Gone():
                self._lost(name, "gone", "it was deleted")
            case SubscriptionFailed(_, error):
                self._lost(name, "refused", str(error))

    def _handled(self, name: str, message_id: bytes) -> None:
        with self._file.changing() as kept:
            if name in kept.queues:
                kept.queues[name] = kept.queues[name].handled(message_id)

    def _lost(self, name: str, event: str, text: str) -> None:
        show_event(name, event, text, json=self._json)
        del self._names[self._chosen.pop(name).queue.recipient_id]
        if not self._chosen:
            give_up("there is nothing left to receive from", EXIT_GONE)
