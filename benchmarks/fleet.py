"""Many user agents in one process: they connect, register, ack, hang up and come back."""

import asyncio
from collections.abc import Callable, Sequence
from uuid import uuid4

from .wire import AgentConnection, LoadError, Said, decode_said, host_and_port

PATIENCE_S = 150.0  # for a hundred thousand others that connect meanwhile


class Agent:
    __slots__ = ("channel_id", "connection", "endpoint", "key", "reply", "uaid")

    def __init__(self, key: str) -> None:
        self.key = key  # the app server its endpoint is bound to
        self.uaid = ""
        self.channel_id = str(uuid4())
        self.endpoint = ""
        self.connection: AgentConnection | None = None
        self.reply: asyncio.Future[Said] | None = None


class Fleet:
    """`on_notification(agent, said)` is called for each one, after its ack was sent."""

    def __init__(
        self,
        ws_url: str,
        keys: Sequence[str],
        count: int,
        *,
        on_notification: Callable[[Agent, Said], None] | None = None,
        local_address: str = "",
    ) -> None:
        self._host, self._port = host_and_port(ws_url)
        self._on_notification = on_notification
        self._local = (local_address, 0) if local_address else None
        self.agents = [Agent(keys[number % len(keys)]) for number in range(count)]
        self.on_broadcast: Callable[[Agent, bytes], None] | None = None

    async def connect_all(self, *, register: bool, at_once: int = 64) -> None:
        await self._for_all(lambda agent: self.connect(agent, register=register), at_once)

    async def _for_all(
        self, call: Callable[[Agent], "asyncio.Future[None] | object"], at_once: int
    ) -> None:
        waiting = iter(self.agents)

        async def work() -> None:
            for agent in waiting:
                await call(agent)  # type: ignore[misc]

        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*(work() for _ in range(min(at_once, len(self.agents)))))

    async def connect(self, agent: Agent, *, register: bool) -> None:
        """Upgrade, hello, and register if the agent has no endpoint yet."""
        loop = asyncio.get_running_loop()
        connection = AgentConnection(f"{self._host}:{self._port}", self._heard)
        connection.opened = loop.create_future()
        connection.agent = agent
        agent.connection = connection
        await loop.create_connection(
            lambda: connection, self._host, self._port, local_addr=self._local
        )
        await connection.opened
        hello = b'{"messageType":"hello","use_webpush":true,"broadcasts":{}'
        if agent.uaid:
            hello += b',"uaid":"' + agent.uaid.encode() + b'"'
        said = await self._ask(agent, hello + b"}")
        if said.kind != "hello" or said.status != 200 or agent.uaid not in ("", said.uaid):
            raise LoadError(f"hello was answered with {said.kind} {said.status}")
        agent.uaid = said.uaid
        if register and not agent.endpoint:
            said = await self._ask(
                agent,
                b'{"messageType":"register","channelID":"%b","key":"%b"}'
                % (agent.channel_id.encode(), agent.key.encode()),
            )
            if said.kind != "register" or said.status != 200:
                raise LoadError(f"register was answered with {said.kind} {said.status}")
            agent.endpoint = said.endpoint

    async def _ask(self, agent: Agent, text: bytes) -> Said:
        assert agent.connection is not None
        agent.reply = asyncio.get_running_loop().create_future()
        agent.connection.say(text)
        return await asyncio.wait_for(agent.reply, PATIENCE_S)

    def _heard(self, connection: AgentConnection, text: bytes) -> None:
        agent = connection.agent
        assert isinstance(agent, Agent)
        said = decode_said(text)
        if said.kind == "notification":
            connection.say(
                b'{"messageType":"ack","updates":[{"channelID":"%b","version":"%b","code":100}]}'
                % (said.channel_id.encode(), said.version.encode())
            )
            if self._on_notification is not None:
                self._on_notification(agent, said)
        elif said.kind == "broadcast":
            if self.on_broadcast is not None:
                self.on_broadcast(agent, text)
        elif agent.reply is not None and not agent.reply.done():
            agent.reply.set_result(said)

    async def hang_up(self) -> None:
        """Returns when every socket is gone on our side and the server had a moment to see it."""
        for agent in self.agents:
            if agent.connection is not None:
                agent.connection.transport.abort()
                agent.connection = None
        await asyncio.sleep(0.3)
