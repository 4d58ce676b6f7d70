"""The driver of clients: reads commands, has them checked and executed, sends answers.

Rule 1: the commands of one client are looked up, checked and started in order. Several may run at
        once, so that one flush to disk serves many; answers are sent in the order of the commands.
        Two commands for one queue never run at once, unless both are SEND: the store keeps their
        order.
Rule 2: at most `window` commands of a client run and `in_blocks_max` blocks wait; beyond that, or
        while it does not read its answers, its socket is not read. This bounds its memory.
Rule 3: deliveries caused by a batch follow its answers.
Rule 4: forwarded commands are answered when they are done, in no particular order.
Rule 5: an unexpected exception closes the connection on which it happened; without an answer the
        client would wait.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, Protocol

from waystation.base.clock import Clock
from waystation.base.errors import BusyError, UnavailableError, WaystationError
from waystation.base.limits import TokenBucket
from waystation.base.tasks import Done, Tasks, eager
from waystation.queue.errors import BadHelloError, Code
from waystation.queue.model import SessionId, VersionRange
from waystation.queue.server.admission import Case
from waystation.queue.server.checks import Checks, Proven
from waystation.queue.server.client import Client, Line, Pending, Work
from waystation.queue.server.delivery import Delivery
from waystation.queue.server.dispatch import Caller, DisconnectError
from waystation.queue.server.observer import NoObserver, Observer
from waystation.queue.server.services import Registry, ServiceSession
from waystation.queue.server.session import Session
from waystation.queue.server.subscribers import Subscribers
from waystation.queue.settings import Queue as QueueSettings
from waystation.queue.wire.commands import Pfwd, Prxy, Rfwd, Send
from waystation.queue.wire.handshake import ServerHandshake
from waystation.queue.wire.responses import Err, Response
from waystation.queue.wire.services import (
    BadServiceError,
    ServiceClaim,
    ready_block,
    refused_block,
)
from waystation.queue.wire.transmission import Received, Refusal, Transmission

WINDOW: Final = 32
_SLOWED_S_MAX: Final = 5.0


class Forwarder(Protocol):
    """SMP proxying: forwards commands to other servers, and executes forwarded ones."""

    async def forward(self, client: Client, transmission: Transmission) -> Response:
        """Executes Prxy, Pfwd or Rfwd."""
        ...

    def left(self, client: Client) -> None: ...


class Steps(Protocol):
    """The look-up and execution of a command; the steps of §5.1."""

    async def look_up(
        self, transmission: Transmission, service: ServiceSession | None = None
    ) -> Case: ...

    async def execute(self, caller: Caller, case: Case, *, proven: Proven) -> Response: ...


class NoForwarder:
    """For servers without proxying."""

    async def forward(self, client: Client, transmission: Transmission) -> Response:
        if isinstance(transmission.command, Rfwd):
            return Err(Code.CMD_PROHIBITED)
        return Err(Code.PROXY_BASIC_AUTH)

    def left(self, client: Client) -> None:
        pass


class Driver:
    def __init__(
        self,
        *,
        dispatch: Steps,
        delivery: Delivery,
        subscribers: Subscribers,
        checks: Checks,
        forwarder: Forwarder,
        handshake: Callable[[SessionId, VersionRange], ServerHandshake],
        settings: QueueSettings,
        tasks: Tasks,
        clock: Clock,
        observer: Observer | None = None,
        registry: Registry | None = None,
    ) -> None:
        """Without a registry no service is admitted."""
        self._registry = registry
        self._dispatch = dispatch
        self._delivery = delivery
        self._subscribers = subscribers
        self._checks = checks
        self._forwarder = forwarder
        self._handshake = handshake
        self._settings = settings
        self._tasks = tasks
        self._clock = clock
        self._observer = NoObserver() if observer is None else observer
        self._loop = asyncio.get_running_loop()
        self.clients: dict[Client, None] = {}

    # Called by the block server

    def opened(self, line: Line, session_id: SessionId, versions: VersionRange) -> Client:
        """TLS is established; the first block to send is `client.session.hello()`."""
        session = Session(self._handshake(session_id, versions))
        settings = self._settings
        return Client(
            line, session, out_blocks_max=settings.out_blocks_max, mono=self._clock.mono()
        )

    def received(self, client: Client, block: bytes) -> bool:
        """One whole block; False if the connection is to be closed."""
        client.active_at = self._clock.mono()
        session = client.session
        was_agreed = session.is_agreed
        try:
            batch = session.receive(block)
        except BadServiceError as error:
            self._reject_service(client, error)
            return True
        except BadHelloError:
            return False
        if was_agreed:
            self.take(client, batch)
            return True
        self.clients[client] = None
        claim = session.agreement.service
        if claim is not None and self._registry is not None:
            client.line.pause()  # commands must wait until the service is admitted
            self._start(client, "service", self._admit_service(client, claim, self._registry))
        return True

    async def _admit_service(self, client: Client, claim: ServiceClaim, registry: Registry) -> None:
        try:
            service = await registry.admit(claim)
        except BadServiceError as error:
            self._reject_service(client, error)
        except (UnavailableError, BusyError):
            client.line.abort()
        else:
            client.service = service
            client.session.answer_hello(ready_block(service.service_id))
            client.line.touch()
            client.line.resume()

    def _reject_service(self, client: Client, error: BadServiceError) -> None:
        client.session.answer_hello(refused_block(error))
        client.line.finish()

    def take(self, client: Client, batch: list[Received]) -> None:
        """Takes the commands of one block."""
        work = client.work
        if work is not None:
            work.inbox.append(batch)
            if len(work.inbox) >= self._settings.in_blocks_max:
                client.line.pause()
            return
        client.work = work = Work()
        work.inbox.append(batch)
        self._start(client, "commands", self._work(client, work))

    def has_room(self, client: Client) -> None:
        """The socket has sent some of its data."""
        if client.congested:
            return
        if client.room is not None and not client.room.done():
            client.room.set_result(None)
        if client.deferred and client.work is None and not client.offering:
            self._start(client, "deliveries", self._offer_deferred(client))

    def closed(self, client: Client) -> None:
        """The connection is closed."""
        client.gone = True
        self.clients.pop(client, None)
        self._subscribers.leave(client)
        self._forwarder.left(client)
        for waiting in (client.room, None if client.work is None else client.work.idle):
            if waiting is not None and not waiting.done():
                waiting.set_result(None)

    # Work

    def _start(self, client: Client, name: str, coro: Coroutine[Any, Any, None]) -> None:
        try:
            rest = eager(coro, self._loop)
        except DisconnectError:
            client.line.abort()
            return
        if not isinstance(rest, Done):
            self._tasks.adopt(name, rest)

    async def _work(self, client: Client, work: Work) -> None:
        try:
            while work.inbox and not client.gone:
                if client.bucket is not None:
                    await self._slow_down(client)
                batch = work.inbox.popleft()
                if len(work.inbox) < self._settings.in_blocks_max:
                    client.line.resume()
                await self._batch(client, work, batch)
                if client.deferred:
                    await self._answered(client, work)
                    await self._offer_deferred(client)
                if work.pending and not work.inbox:
                    await self._answered(client, work)
            # Deliveries may have been deferred meanwhile; `has_room` sends the others later.
            if client.deferred:
                await self._offer_deferred(client)
        except (DisconnectError, UnavailableError):
            client.line.abort()
        except Exception:
            client.line.abort()
            raise
        finally:
            client.work = None

    async def _batch(self, client: Client, work: Work, batch: list[Received]) -> None:
        session_key = client.session.session_key
        service, look_up = client.service, self._dispatch.look_up
        if service is not None:
            look_up = partial(look_up, service=service)
        cases = [one if isinstance(one, Refusal) else await look_up(one) for one in batch]
        asked = [
            None if isinstance(case, Refusal) else case.to_check(session_key) for case in cases
        ]
        proofs = [proof for proof in asked if proof is not None]
        proven = iter(await self._checks.ask(proofs) if proofs else ())
        caller = Caller(client, client.session.version, session_key, service)
        for case, proof in zip(cases, asked, strict=True):
            if len(work.pending) >= WINDOW or client.congested:
                await self._room(client, work)
            if client.gone:
                return
            if isinstance(case, Refusal):
                self._add(client, work, case, Done(Err(case.fault)))
                continue
            holds = proof is not None and next(proven)
            command = case.transmission.command
            if isinstance(command, Prxy | Pfwd | Rfwd) and case.refused is None:
                await self._forward(client, work, case.transmission)
                continue
            if work.queues:
                await self._until_free(client, work, case)
            outcome = eager(self._dispatch.execute(caller, case, proven=holds), self._loop)
            self._add(client, work, case, outcome)
        self._observer.worked_through(batch)

    def _add(
        self,
        client: Client,
        work: Work,
        case: Case | Refusal,
        outcome: "Done[Response] | asyncio.Task[Response]",
    ) -> None:
        if isinstance(case, Refusal):
            pending = Pending(case.corr_id, case.entity_id, outcome, None)
        else:
            sent = case.transmission
            queue_id = None if case.queue is None else case.queue.recipient_id
            pending = Pending(sent.corr_id, sent.entity_id, outcome, queue_id)
            if queue_id is not None and not isinstance(outcome, Done):
                sends = isinstance(sent.command, Send)
                work.queues[queue_id] = work.queues.get(queue_id, 0) + 1 if sends else -1
        work.pending.append(pending)
        if isinstance(outcome, Done):
            pending.queue_id = None
            self._answer(client, work)
        else:
            outcome.add_done_callback(lambda _: self._answer(client, work))

    def _answer(self, client: Client, work: Work) -> None:
        """Sends the finished answers, in order."""
        pending = work.pending
        while pending:
            first = pending[0]
            if isinstance(first.outcome, Done):
                response = first.outcome.value
            elif first.outcome.done():
                response = self._result(client, first.outcome)
            else:
                break
            pending.popleft()
            if first.queue_id is not None:
                left = work.queues.get(first.queue_id, 1) - 1
                if left > 0:
                    work.queues[first.queue_id] = left
                else:
                    work.queues.pop(first.queue_id, None)
            if response is not None:
                self._count_refusal(client, response)
                client.say(first.corr_id, first.entity_id, response)
        if work.idle is not None and not work.idle.done():
            work.idle.set_result(None)

    def _result(self, client: Client, task: "asyncio.Task[Response]") -> Response | None:
        if task.cancelled():
            return None
        error = task.exception()
        if error is None:
            return task.result()
        client.line.abort()
        if not isinstance(error, DisconnectError | WaystationError):
            self._loop.call_exception_handler(
                {"message": "a command of a client failed", "exception": error}
            )
        return None

    async def _forward(self, client: Client, work: Work, transmission: Transmission) -> None:
        while client.forwarding >= self._settings.proxy_concurrency and not client.gone:
            await self._next_answer(work)
        if client.gone:
            return
        client.forwarding += 1
        self._start(client, "forwarding", self._forwarded(client, transmission))

    async def _forwarded(self, client: Client, sent: Transmission) -> None:
        try:
            response = await self._forwarder.forward(client, sent)
            client.say(sent.corr_id, sent.entity_id, response)
        except (DisconnectError, UnavailableError):
            client.line.abort()
        except Exception:
            client.line.abort()
            raise
        finally:
            client.forwarding -= 1
            work = client.work
            if work is not None and work.idle is not None and not work.idle.done():
                work.idle.set_result(None)

    # Wait

    async def _until_free(self, client: Client, work: Work, case: Case) -> None:
        """Waits while commands run that this one must not overtake."""
        if case.queue is None:
            return
        under_way = work.queues.get(case.queue.recipient_id)
        sends = isinstance(case.transmission.command, Send)
        if under_way is not None and not (sends and under_way > 0):
            await self._answered(client, work)

    async def _slow_down(self, client: Client) -> None:
        """After too many refused authorisations, waits before the next block is read."""
        wait_s = client.slowed_until - self._clock.mono()
        if wait_s > 0:
            await asyncio.sleep(wait_s)

    async def _answered(self, client: Client, work: Work) -> None:
        while work.pending and not client.gone:
            await self._next_answer(work)

    async def _room(self, client: Client, work: Work) -> None:
        """Waits until another command of the client may run."""
        while not client.gone:
            if client.congested:
                client.room = self._loop.create_future()
                await client.room
                client.room = None
            elif len(work.pending) >= WINDOW:
                await self._next_answer(work)
            else:
                return

    async def _next_answer(self, work: Work) -> None:
        work.idle = self._loop.create_future()
        await work.idle
        work.idle = None

    async def _offer_deferred(self, client: Client) -> None:
        if client.offering:
            return
        client.offering = True
        try:
            while client.deferred and not client.congested and not client.gone:
                subscription = client.deferred.pop(next(iter(client.deferred)))
                await self._delivery.offer(subscription)
        except UnavailableError:
            client.line.abort()  # otherwise the subscription would miss a message
        finally:
            client.offering = False

    def _count_refusal(self, client: Client, response: Response) -> None:
        limit = self._settings.auth_errors_per_min
        if limit and isinstance(response, Err) and response.fault is Code.AUTH:
            if client.bucket is None:
                client.bucket = TokenBucket(limit / 60, limit)
            now = self._clock.mono()
            wait_s = client.bucket.take(now)
            if wait_s:
                client.slowed_until = now + min(wait_s, _SLOWED_S_MAX)
