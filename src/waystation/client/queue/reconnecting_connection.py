"""A connection to one server that reconnects when it breaks.

Rule 1: a broken connection is retried after a random wait, whose limit doubles up to
        `backoff_max_s`; a successful connection resets it.
Rule 2: a server with another identity than the address, or without a common version, is not tried
        again: every command raises that error.
Rule 3: a command that cannot have reached the server is repeated. One that may have reached it is
        repeated only with `repeat`, which says that this does no harm.
Rule 4: after `ping_interval_s` without data a PING is sent; without an answer the connection is
        broken.
"""

import asyncio
import random
import ssl
from collections.abc import Awaitable, Callable

from waystation.base.errors import WaystationError

from .address import ServerAddress
from .answers import Answer
from .commands import Command, Ping
from .connection import Connection, ConnectionSettings, Dial, NotConnectedError, OutcomeUnknownError
from .encoding import BadBytesError
from .hello import IdentityError, VersionError
from .keys import PrivateKey
from .tls import client_context
from .transmission import Reply


class ReconnectingConnection:
    def __init__(
        self,
        server: ServerAddress,
        *,
        on_event: Callable[[Reply], None],
        on_connected: Callable[[Connection], Awaitable[None]],
        on_given_up: Callable[[BaseException], None],
        settings: ConnectionSettings,
        tls: ssl.SSLContext | None,
        dial: Dial,
        rng: random.Random,
    ) -> None:
        self.server = server
        self._on_event = on_event
        self._on_connected = on_connected
        self._on_given_up = on_given_up
        self._settings = settings
        self._dial = dial
        self._tls = tls or client_context()
        if settings.service is not None:
            settings.service.show_in(self._tls)
        self._rng = rng
        self._connection: Connection | None = None
        self._up = asyncio.Event()
        self._runner: asyncio.Task[None] | None = None
        self._fatal: WaystationError | None = None
        self.connections = 0  # successful connections; above 1: reconnected
        self.last_problem = ""  # why the last connection ended or failed

    def start(self) -> None:
        assert self._runner is None, "start() is called once"
        self._runner = asyncio.get_running_loop().create_task(self._run(), name="queue-line")
        self._runner.add_done_callback(self._given_up)

    async def close(self) -> None:
        if self._runner is not None:
            self._runner.cancel()
            await asyncio.gather(self._runner, return_exceptions=True)
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    @property
    def now(self) -> Connection | None:
        """The current connection, if there is one."""
        return self._connection

    async def connected(self, timeout_s: float | None = None) -> Connection:
        assert self._runner is not None, "not started"
        if not self._up.is_set():
            up = asyncio.ensure_future(self._up.wait())
            try:
                await asyncio.wait(
                    {up, self._runner},
                    timeout=self._settings.patience_s if timeout_s is None else timeout_s,
                    return_when=asyncio.FIRST_COMPLETED,
                )
            finally:
                up.cancel()
        if self._connection is not None and self._up.is_set():
            return self._connection
        if self._fatal is not None:
            raise self._fatal
        if self._runner.done() and not self._runner.cancelled():
            self._runner.result()  # a programming error ends the runner: show it
        raise NotConnectedError(
            f"no connection to {', '.join(self.server.hosts)} port {self.server.port}:"
            f" {self.last_problem or 'no answer yet'}"
        )

    async def ask(
        self,
        command: Command,
        *,
        entity_id: bytes = b"",
        key: PrivateKey | None = None,
        corr_id: bytes | None = None,
        repeat: bool = False,
    ) -> tuple[Answer, bool]:
        """The answer, and whether the command was repeated and may have been executed before."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.patience_s
        repeated = False
        while True:
            connection = await self.connected(max(0.0, deadline - loop.time()))
            try:
                answer = await connection.ask(
                    command, entity_id=entity_id, key=key, corr_id=corr_id
                )
            except NotConnectedError:
                self._lost(connection)
                if loop.time() >= deadline:
                    raise
            except OutcomeUnknownError:
                self._lost(connection)
                if not repeat or loop.time() >= deadline:
                    raise
                repeated = True
            else:
                return answer, repeated

    async def _run(self) -> None:
        settings = self._settings
        failures = 0
        while True:
            try:
                connection = await self._dial(self.server, self._on_event, self._tls, settings)
            except (IdentityError, VersionError) as exc:
                self._fatal = exc
                return
            except (NotConnectedError, BadBytesError) as exc:
                self.last_problem = str(exc)
                failures += 1
            else:
                failures = 0
                self.connections += 1
                await self._keep(connection)
                self.last_problem = connection.end_reason
            await asyncio.sleep(self._backoff_s(failures))

    def _given_up(self, runner: "asyncio.Task[None]") -> None:
        """Reports an error after which there are no more attempts (rule 2, or a bug)."""
        if not runner.cancelled() and (error := self._fatal or runner.exception()) is not None:
            self._on_given_up(error)

    async def _keep(self, connection: Connection) -> None:
        """Until it ends."""
        self._connection = connection
        try:
            await self._on_connected(connection)
            if not connection.ended.is_set():
                self._up.set()
            while not connection.ended.is_set():
                try:
                    async with asyncio.timeout(self._settings.ping_interval_s):
                        await connection.ended.wait()
                except TimeoutError:
                    await self._ping(connection)
        finally:
            self._lost(connection)
            await connection.close()

    async def _ping(self, connection: Connection) -> None:
        silent_s = asyncio.get_running_loop().time() - connection.heard_at
        if silent_s >= self._settings.ping_interval_s:
            try:
                await connection.ask(Ping())
            except (NotConnectedError, OutcomeUnknownError):
                return  # it has ended already

    def _lost(self, connection: Connection) -> None:
        if self._connection is connection and connection.ended.is_set():
            self._connection = None
            self._up.clear()
            self.last_problem = connection.end_reason

    def _backoff_s(self, failures: int) -> float:
        settings = self._settings
        ceiling_s = min(settings.backoff_base_s * 2.0 ** min(failures, 30), settings.backoff_max_s)
        return self._rng.uniform(ceiling_s / 2, ceiling_s)
