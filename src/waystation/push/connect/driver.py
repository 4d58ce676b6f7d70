"""Driver: moves data between sockets, sessions and the store. Protocol decisions are in `session`.

One driver handles all connections of its worker and is the worker's `Node` for the relay. Each
connection has a `UserAgentConnection`: its session, the messages queued behind a command in
progress, and its timer.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine
from typing import Any, assert_never

from waystation.base.clock import Clock
from waystation.base.errors import BusyError, UnavailableError
from waystation.base.tasks import Done, Tasks, eager
from waystation.net.websocket.connection import WebSocket
from waystation.net.websocket.frames import ping_frame, text_frame
from waystation.net.websocket.upgrade import Upgrade
from waystation.push.connect import effects as do
from waystation.push.connect.effects import Direct, Effect
from waystation.push.connect.journal import Journal, key_of
from waystation.push.connect.observer import Observer
from waystation.push.connect.registry import Registry
from waystation.push.connect.session import INTERNAL, Session
from waystation.push.connect.session_context import SessionContext
from waystation.push.connect.session_timers import SessionTimers
from waystation.push.connect.unacked_saver import UnackedSaver
from waystation.push.connect.user_agent_connection import (
    UserAgentConnection,
    client_of,
    frame_of,
    uaid_of,
)
from waystation.push.model import Notification, Uaid, Update, UserAgent
from waystation.push.store import CursorStore, PushStore, RotatingStore
from waystation.push.wire import client_messages as wire
from waystation.push.wire.relay import Answer, Relay

SPREAD_STEP_S = 0.05  # the shortest pause between closes during a drain
SERVICE_RESTART = 1012
_PING_FRAME = ping_frame()


class ConnectDriver:
    def __init__(
        self,
        context: SessionContext,
        *,
        store: PushStore,
        relay: Relay,
        saver: UnackedSaver,
        journal: Journal | None,
        tasks: Tasks,
        clock: Clock,
        observer: Observer | None = None,
    ) -> None:
        self._context = context
        self._store = store
        self._rotating: RotatingStore | None = store if isinstance(store, RotatingStore) else None
        self._relay = relay
        self._saver = saver
        self._journal = journal
        self._tasks = tasks
        self._clock = clock
        self._observer = observer if observer is not None else Observer()
        self._loop = asyncio.get_running_loop()
        self._registry: Registry[UserAgentConnection] = Registry()
        self._timers: SessionTimers[UserAgentConnection] = SessionTimers(
            clock, self._loop, self._wake
        )
        self._saving: set[asyncio.Task[None]] = set()
        self._dropping: dict[Uaid, asyncio.Event] = {}  # records being removed

    @property
    def connected(self) -> int:
        return len(self._registry)

    # Handler of the WebSocket server

    def open(self, connection: WebSocket, upgrade: Upgrade) -> "ConnectDriver":
        session = Session(self._context, mono=self._clock.mono())
        client = UserAgentConnection(
            connection, session, self._observer.opened(connection, upgrade)
        )
        connection.handler_state = client
        client.timer = self._timers.set(session.wake_at, client)
        return self

    def text(self, connection: WebSocket, text: bytes) -> None:
        client = client_of(connection)
        if client.waiting or client.session.busy:
            if client.waiting is None:
                client.waiting = deque()
            client.waiting.append(text)
            if len(client.waiting) >= self._context.settings.max_commands:
                connection.pause()
            return
        self._feed(client, text)

    def binary(self, connection: WebSocket) -> None:
        client = client_of(connection)
        self._perform(client, client.session.received_binary())

    def pinged(self, connection: WebSocket, payload: bytes) -> None: ...

    def ponged(self, connection: WebSocket) -> None:
        client = client_of(connection)
        client.session.ponged(mono=self._clock.mono())
        self._reset_timer(client)

    def broken(self, connection: WebSocket, code: int, reason: str) -> None:
        self._end(client_of(connection), code, reason)

    def closed(self, connection: WebSocket) -> None:
        self._end(client_of(connection), connection.close_code, connection.ending.name.lower())

    # `Node` of the relay

    async def push(self, uaid: Uaid, notification: Notification | Update) -> Answer:
        client = self._registry.get(uaid)
        if client is None or client.connection is None:
            return Answer.ABSENT
        journal = self._journal
        if isinstance(notification, Notification) and not notification.ttl_s:
            journal = None
        if client.connection.congested or (journal is not None and journal.full):
            self._perform(client, client.session.congested())
            self._observer.refused(uaid)
            return Answer.BUSY
        match client.session.direct(notification):
            case Direct.REFUSED:
                self._observer.refused(uaid)
                return Answer.BUSY
            case Direct.OUTSTANDING:
                return Answer.TAKEN
            case Direct.SENT:
                pass
        client.connection.send(frame_of(notification))
        self._observer.taken(uaid, notification)
        if journal is not None and not await journal.accept(uaid, notification):
            self._perform(client, client.session.congested())  # the endpoint stores it now
            return Answer.BUSY
        return Answer.TAKEN

    async def check_stored(self, uaid: Uaid) -> Answer:
        client = self._registry.get(uaid)
        if client is None:
            return Answer.ABSENT
        now, effects = client.session.check_stored()
        self._perform(client, effects)
        return Answer.TAKEN if now else Answer.FLAGGED

    async def displace(self, uaid: Uaid, connected_at_ms: int) -> Answer:
        client = self._registry.get(uaid)
        if client is not None and client.session.connected_at_ms == connected_at_ms:
            self._observer.displaced(uaid)
            self._perform(client, client.session.ended(INTERNAL, "Ghosted"))
            return Answer.TAKEN
        return Answer.ABSENT

    def push_abandoned(self, uaid: Uaid, taken: Notification | Update | None) -> None:
        client = self._registry.get(uaid)
        if client is not None:
            if taken is None:
                self._observer.refused(uaid)
            self._perform(client, client.session.push_abandoned(taken))

    # Stopping

    async def drain(self, *, spread_s: float) -> None:
        """Close every session, evenly over `spread_s`, and wait until all unacked notifications
        are saved. A full store is not waited for: the journal keeps them for the next worker."""
        while clients := list(self._registry):  # again for connections that arrived meanwhile
            began = self._clock.mono()
            for index, client in enumerate(clients):
                due_s = spread_s * index / len(clients)
                if (ahead_s := due_s - (self._clock.mono() - began)) > SPREAD_STEP_S:
                    await asyncio.sleep(ahead_s)
                self._perform(client, client.session.ended(SERVICE_RESTART, "Restart"))
            spread_s = 0.0
        if self._journal is not None:
            self._saver.end()
        while self._saving:
            await asyncio.wait(list(self._saving))

    # Inputs and effects

    def _feed(self, client: UserAgentConnection, text: bytes) -> None:
        effects = client.session.received(
            text, now_ms=self._clock.now_ms(), mono=self._clock.mono()
        )
        self._perform(client, effects)

    def _feed_waiting(self, client: UserAgentConnection) -> None:
        while client.waiting and not client.session.busy:
            text = client.waiting.popleft()
            if not client.waiting and client.connection is not None:
                client.connection.resume()
            self._feed(client, text)

    def _perform(self, client: UserAgentConnection, effects: list[Effect]) -> None:
        connection = client.connection
        for effect in effects:
            if connection is None:
                return
            match effect:
                case do.Settle():
                    self._settled(client, effect)
                case do.Send():
                    connection.send(text_frame(effect.payload))
                case do.SendFrame():
                    connection.send(effect.frame)
                case do.DeliverStored() | do.DeliverUpdates():
                    self._deliver_stored(client, connection, effect)
                case do.SendPing():
                    connection.send(_PING_FRAME)
                case do.AddToRegistry():
                    self._registry.add(effect.uaid, client)
                case do.Greeted():
                    self._greeted(client)
                case do.ReceiveHeld():
                    client.waiting = deque((*effect.texts, *(client.waiting or ())))
                case do.Nacked():
                    self._observer.nacked(uaid_of(client), effect.version, effect.code)
                case do.Displace():
                    self._spawn("displace", self._displace(uaid_of(client), effect))
                case do.Close():
                    connection.close(effect.code, effect.reason)
                    self._end(client, effect.code, effect.reason)
                case _:
                    self._ask(client, effect)

    def _deliver_stored(
        self,
        client: UserAgentConnection,
        connection: WebSocket,
        effect: do.DeliverStored | do.DeliverUpdates,
    ) -> None:
        if isinstance(effect, do.DeliverUpdates):
            self._observer.retrieved(uaid_of(client), effect.updates)
            connection.send(text_frame(wire.updates_message(effect.updates)))
            return
        self._observer.retrieved(uaid_of(client), effect.notifications)
        for notification in effect.notifications:
            connection.send(frame_of(notification))

    def _ask(self, client: UserAgentConnection, effect: Effect) -> None:
        """Run an effect that needs the store. Most reads answer at once and need no task."""
        started = eager(self._answer(client, effect), self._loop)
        if not isinstance(started, Done):
            self._tasks.adopt("store", started)

    async def _answer(self, client: UserAgentConnection, effect: Effect) -> None:
        try:
            effects = await self._ask_store(client, effect)
        except (UnavailableError, BusyError):
            effects = client.session.failed(effect)
        except Exception:
            # A bug: end this connection and report the exception.
            self._perform(client, client.session.failed(effect))
            raise
        self._perform(client, effects)
        self._feed_waiting(client)

    async def _ask_store(self, client: UserAgentConnection, effect: Effect) -> list[Effect]:
        session, store = client.session, self._store
        match effect:
            case do.LookUp():
                record = await self._look_up(effect.uaid)
                return session.looked_up(
                    record, now_ms=self._clock.now_ms(), mono=self._clock.mono()
                )
            case do.Claim():
                applied = await store.claim_route(effect.user_agent)
                return session.claimed(applied, mono=self._clock.mono())
            case do.Confirm():
                return session.confirmed(await store.get_user_agent(uaid_of(client)))
            case do.Reclaim():
                return session.reclaimed(await store.claim_route(effect.user_agent))
            case do.Subscribe():
                applied = await self._subscribe(uaid_of(client), effect)
                self._observer.registered(
                    uaid_of(client), effect.channel_id, 200 if applied else 500
                )
                return session.subscribed(applied)
            case do.Unsubscribe():
                await store.remove_channel(uaid_of(client), effect.channel_id)
                self._observer.unregistered(uaid_of(client), effect.channel_id, effect.code)
                return session.unsubscribed()
            case do.Fetch():
                return await self._fetch(client, effect)
            case do.FetchUpdates():
                updates = await store.fetch_updates(uaid_of(client), limit=effect.limit)
                return session.fetched_updates(updates)
            case do.Forget():
                return await self._forget(client, effect)
            case do.ForgetUpdate():
                update = effect.update
                await store.forget_update(uaid_of(client), update.channel_id, update.version)
                self._observer.acked(uaid_of(client), update, wire.DELIVERED, stored=True)
                return session.forgotten(1)
            case do.AdvanceCursor():
                assert isinstance(store, CursorStore), "only CursorWindow asks for it"
                await store.advance_cursor(uaid_of(client), effect.up_to_ms)
                return []
            case do.SwitchMonth():
                assert self._rotating is not None, "only a rotating store has records of old months"
                applied = await self._rotating.switch_month(
                    uaid_of(client), connected_at_ms=effect.connected_at_ms
                )
                return session.switched(applied)
            case do.SwitchLater():
                await asyncio.sleep(effect.after_s)
                return session.switch_due()
            case do.DropUserAgent():
                await self._drop(uaid_of(client))
                self._observer.dropped(uaid_of(client), effect.reason)
                return session.dropped()
            case (
                do.Send()
                | do.SendFrame()
                | do.SendPing()
                | do.DeliverStored()
                | do.DeliverUpdates()
                | do.Close()
                | do.AddToRegistry()
                | do.Greeted()
                | do.Displace()
                | do.Settle()
                | do.ReceiveHeld()
                | do.Nacked()
                | do.SaveUnacked()
            ):
                raise AssertionError("this effect does not ask the store")
            case _:
                assert_never(effect)

    async def _subscribe(self, uaid: Uaid, effect: do.Subscribe) -> bool:
        newcomer = effect.newcomer
        if newcomer is not None and not await self._store.add_user_agent(newcomer):
            # The record exists if an earlier attempt wrote it and then the store failed.
            held = await self._store.get_user_agent(uaid)
            if held is None or held.connected_at_ms != newcomer.connected_at_ms:
                raise UnavailableError("the new uaid is already in use")
        return await self._store.add_channel(
            uaid, effect.channel_id, channels_max=self._context.settings.max_channels_per_uaid
        )

    async def _look_up(self, uaid: Uaid) -> UserAgent | None:
        if (dropped := self._dropping.get(uaid)) is not None:
            await dropped.wait()  # this hello arrived while the record was being removed
        return await self._store.get_user_agent(uaid)

    async def _drop(self, uaid: Uaid) -> None:
        dropped = self._dropping[uaid] = asyncio.Event()
        try:
            await self._store.remove_user_agent(uaid)
        finally:
            del self._dropping[uaid]
            dropped.set()

    async def _fetch(self, client: UserAgentConnection, effect: do.Fetch) -> list[Effect]:
        uaid, began = uaid_of(client), self._clock.mono()
        rows = await self._store.fetch(
            uaid, now_ms=self._clock.now_ms(), after=None, limit=effect.limit
        )
        payload_bytes = sum(len(row.data) for row in rows if row.data is not None)
        self._observer.looked(uaid, len(rows), payload_bytes, self._clock.mono() - began)
        return client.session.fetched(rows)

    async def _forget(self, client: UserAgentConnection, effect: do.Forget) -> list[Effect]:
        uaid = uaid_of(client)
        rows = [(n.sort_key, n.message_id) for n, _ in effect.acked]
        if self._journal is not None:
            for notification, _ in effect.acked:
                self._journal.settle(uaid, notification)  # it may be in the journal as well
        await self._store.forget(uaid, rows)
        for notification, code in effect.acked:
            self._observer.acked(uaid, notification, code, stored=True)
        return client.session.forgotten(len(rows))

    def _settled(self, client: UserAgentConnection, effect: do.Settle) -> None:
        uaid, notification = client.session.uaid, effect.notification
        assert uaid is not None
        if self._journal is not None:
            self._journal.settle(uaid, notification)
        if effect.code > 0:
            self._observer.acked(uaid, notification, effect.code, False)
        elif effect.code == do.DROPPED:
            self._observer.dropped_with_channel(notification)

    def _greeted(self, client: UserAgentConnection) -> None:
        self._observer.hello(client.session, client.note)
        self._reset_timer(client)
        older = self._registry.greeted(client)
        if older is not None:
            self._observer.took_over(uaid_of(client), self._context.node_id)
            self._perform(older, older.session.ended(INTERNAL, "Ghosted"))

    async def _displace(self, uaid: Uaid, effect: do.Displace) -> None:
        answer = await self._relay.displace(effect.node_id, uaid, effect.connected_at_ms)
        if answer is Answer.TAKEN:
            self._observer.took_over(uaid, effect.node_id)

    # Endings

    def _end(self, client: UserAgentConnection, code: int, reason: str) -> None:
        """End the session; the socket may still be closing."""
        if client.connection is None:
            return
        session = client.session
        for text in client.waiting or ():
            self._perform(client, session.acked_at_last(text))
        client.connection = None
        client.waiting = None
        self._timers.cancel(client.timer)
        if not session.greeted:
            self._observer.hello_refused(client.note, code)
        unacked = session.closed()
        if session.uaid is not None and self._registry.remove(session.uaid, client):
            older = self._registry.get(session.uaid)
            if older is not None:  # registered again; refused notifications are in storage
                self._perform(older, older.session.check_stored()[1])
        for effect in unacked:
            assert isinstance(effect, do.SaveUnacked)
            task = self._spawn("hand back", self._save_unacked(client, effect))
            self._saving.add(task)
            task.add_done_callback(self._saving.discard)
        self._observer.closed(session, client.note, code, reason)

    async def _save_unacked(self, client: UserAgentConnection, effect: do.SaveUnacked) -> None:
        uaid = uaid_of(client)
        left = await self._saver.save(
            uaid,
            effect.notifications,
            connected_at_ms=client.session.connected_at_ms,
        )
        if self._journal is not None:
            owed = {key_of(uaid, notification) for notification in left}
            for notification in effect.notifications:
                if key_of(uaid, notification) not in owed:
                    self._journal.settle(uaid, notification)

    def _spawn(self, name: str, coro: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self._tasks.spawn(name, coro)

    # Timers

    def _wake(self, client: UserAgentConnection, mono: float) -> None:
        if client.connection is None:
            return
        self._perform(client, client.session.woken(mono=mono))
        if client.alive:
            client.timer = self._timers.set(client.session.wake_at, client)

    def _reset_timer(self, client: UserAgentConnection) -> None:
        """Set the timer again after the session may have moved `wake_at` to an earlier time."""
        if self._timers.cancel(client.timer):
            client.timer = self._timers.set(client.session.wake_at, client)

    def close(self) -> None:
        self._timers.close()
