"""Sends through a proxy, so that the queue's server does not learn the client's address.

    async with QueueClient(proxy_address) as proxy:
        relay = Relay(proxy, queue_address.server)
        await relay.send(sender, body)

Rule 1: the proxy learns the server of the queue, but neither queue nor message; the server learns
        the queue, but not the client's address.
Rule 2: a proxy that has lost its session with the relay answers so before it forwards anything. The
        client then asks for a new session and repeats the command once.
"""

import asyncio
from datetime import UTC, datetime

from .address import LinkAddress, ServerAddress
from .answers import Answer, Forwarded, Link, Ok, Refused, RelaySession
from .client import QueueClient
from .commands import Command, Send, SenderKey
from .encoding import BadBytesError
from .error_replies import ErrorReply, RefusedError, error_of
from .forwarding import Forwarding, relay_request
from .keys import PrivateKey
from .links import LinkContent, link_outcome, link_request
from .queue_secrets import SenderQueue

FORWARDED_MAX = 32  # commands in flight that a proxy accepts from one client


class Relay:
    def __init__(self, proxy: QueueClient, server: ServerAddress) -> None:
        self._proxy = proxy
        self._server = server
        self._forwarding: Forwarding | None = None
        self._opening = asyncio.Lock()
        self._room = asyncio.Semaphore(FORWARDED_MAX)

    async def send(
        self, sender: SenderQueue, body: bytes, *, notify: bool = False, again: bool = False
    ) -> None:
        """Like `QueueClient.send`."""
        answer = await self._ask(
            Send(body, notify), entity_id=sender.sender_id, key=sender.key, repeat=again
        )
        _expect(answer, Ok)

    async def secure_as_sender(self, sender: SenderQueue) -> None:
        assert sender.key is not None, "a sender secures a queue with a key"
        answer = await self._ask(
            SenderKey(sender.key.public), entity_id=sender.sender_id, key=sender.key, repeat=True
        )
        _expect(answer, Ok)

    async def open_link(
        self, link: LinkAddress, key: PrivateKey | None = None
    ) -> tuple[LinkContent, SenderQueue]:
        """Like `QueueClient.open_link`."""
        command, link_id, signer = link_request(link, key)
        answer = await self._ask(command, entity_id=link_id, key=signer, repeat=True)
        if not isinstance(answer, Link):
            raise BadBytesError("unexpected answer to a link command")
        return link_outcome(answer, link, signer)

    async def _ask(
        self, command: Command, *, entity_id: bytes, key: PrivateKey | None, repeat: bool
    ) -> Answer:
        async with self._room:
            forwarding = await self._open()
            try:
                return await self._forward(forwarding, command, entity_id, key, repeat)
            except RefusedError as exc:
                if exc.error_reply != ErrorReply("PROXY NO_SESSION"):
                    raise
            if self._forwarding is forwarding:
                self._forwarding = None
            return await self._forward(await self._open(), command, entity_id, key, repeat)

    async def _open(self) -> Forwarding:
        async with self._opening:
            if self._forwarding is None:
                request = relay_request(self._server, self._proxy.server.password)
                session = await self._proxy.ask(request, repeat=True)
                if not isinstance(session, RelaySession):
                    raise BadBytesError("unexpected answer to PRXY")
                self._forwarding = Forwarding(session, self._server, datetime.now(UTC))
            return self._forwarding

    async def _forward(
        self,
        forwarding: Forwarding,
        command: Command,
        entity_id: bytes,
        key: PrivateKey | None,
        repeat: bool,
    ) -> Answer:
        parcel = forwarding.pack(command, entity_id=entity_id, key=key)
        reply = await self._proxy.ask(
            parcel.command,
            entity_id=forwarding.session_id,
            corr_id=parcel.corr_id,
            repeat=repeat,
        )
        if not isinstance(reply, Forwarded):
            raise BadBytesError("unexpected answer to PFWD")
        answer = forwarding.unpack(reply.sealed, parcel)
        if isinstance(answer, Refused):
            raise error_of(answer.error_reply)
        return answer


def _expect(answer: Answer, expected: type[Answer]) -> None:
    if not isinstance(answer, expected):
        raise BadBytesError("unexpected answer to a forwarded command")
