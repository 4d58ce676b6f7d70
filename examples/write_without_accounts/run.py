"""Alice invites Bob; they write to each other through two queues, and the server is killed.

python run.py
"""

import asyncio
import os
import sys
import tempfile
from pathlib import Path

import msgspec

from waystation.client.local_server import LocalServer
from waystation.client.queue import tls
from waystation.client.queue.address import LinkAddress, QueueAddress, ServerAddress
from waystation.client.queue.client import QueueClient
from waystation.client.queue.envelope import open_message, seal_message
from waystation.client.queue.events import Received
from waystation.client.queue.keys import PrivateKey
from waystation.client.queue.queue_secrets import RecipientQueue, SenderQueue


class Person:
    """One queue to receive from, and one to send to once somebody has told where it is."""

    def __init__(self, name: str, client: QueueClient) -> None:
        self.name = name
        self.client = client
        self._sealing_key = PrivateKey.generate("x25519")
        self._to: tuple[QueueAddress, SenderQueue] | None = None

    async def invite(self) -> LinkAddress:
        """A link for one person: whoever opens it first is the only one who can send."""
        self._queue: RecipientQueue = await self.client.create(link_text=f"{self.name} here")
        link = self._queue.link_address
        assert link is not None
        return link

    async def accept(self, link: LinkAddress) -> str:
        content, sender = await self.client.open_link(link)
        self._to = content.address, sender
        return content.text

    async def write(self, text: str) -> None:
        """Returns once the server has it on disk; the server sees padding and ciphertext."""
        assert self._to is not None
        address, sender = self._to
        body = seal_message(text.encode(), address.dh, self._sealing_key)
        await self.client.send(sender, body, again=True)

    async def read(self) -> str:
        """Acknowledged as soon as we have it; the next message comes only then."""
        while True:
            event = await self.client.receive()
            if isinstance(event, Received):
                await self.client.ack(event)
                return open_message(event.body, self._queue.inbox_key).decode()


async def walk(server: LocalServer) -> None:
    serving = msgspec.json.decode((server.data_dir / "run" / "serve.json").read_bytes())
    address = ServerAddress.parse(serving["queue_address"])
    # Two connections that the server cannot tell from those of strangers.
    async with QueueClient(address) as hers, QueueClient(address) as his:
        alice, bob = Person("alice", hers), Person("bob", his)

        # The one thing that travels another way: an invitation, as text or as a QR code.
        print("bob opens the invitation:", await bob.accept(await alice.invite()))
        # The way back is a second queue, and its invitation goes through the first.
        await bob.write(str(await bob.invite()))
        print("alice opens his:", await alice.accept(LinkAddress.parse(await alice.read())))

        await alice.write("are you there?")
        print("kill -9")
        await asyncio.to_thread(server.kill)
        writing = asyncio.create_task(alice.write("still there?"))
        await asyncio.to_thread(server.start)
        await writing
        print("bob reads:", await bob.read(), await bob.read())

        await bob.write("yes, both arrived")
        print("alice reads:", await alice.read())


def main() -> None:
    # SMP wants one cipher suite of TLS, and Python cannot say so: OpenSSL's configuration can,
    # if the process starts with it.
    if not tls.is_set_up():
        os.execve(sys.executable, [sys.executable, *sys.argv], tls.environment())
    with (
        tempfile.TemporaryDirectory() as where,
        LocalServer(Path(where) / "data", roles=("queue",)) as server,
    ):
        asyncio.run(asyncio.wait_for(walk(server), 60))


if __name__ == "__main__":
    main()
