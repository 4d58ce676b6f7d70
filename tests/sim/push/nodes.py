"""Nodes of the simulated push service: production code that can be killed between any two steps.

A kill loses everything in memory. What the kernel has stays: the in-flight journal (a real file),
calls to the store that were sent, frames on their way to a user agent.
"""

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pybase64

from tests.sim.push.checkers import History, Post
from tests.sim.push.clients import ENDPOINT_PORT
from tests.sim.sockets import SimNetLoop
from waystation.base.ids import new_uuid4
from waystation.net.http1.server import HttpServer
from waystation.net.websocket.connection import WebSocket
from waystation.net.websocket.limits import WebSocketLimits
from waystation.net.websocket.server import WebSocketServer
from waystation.push.connect.broadcasts import Broadcasts
from waystation.push.connect.driver import ConnectDriver
from waystation.push.connect.journal import Journal, read_unsettled
from waystation.push.connect.journal_replay import replayed_or_troubled
from waystation.push.connect.node_api import NodeApi
from waystation.push.connect.observer import Observer as ConnectObserver
from waystation.push.connect.session import Session
from waystation.push.connect.session_context import SessionContext
from waystation.push.connect.user_agent_connection import UserAgentConnection
from waystation.push.endpoint.bridge_router import BridgeRouter
from waystation.push.endpoint.intake import Intake
from waystation.push.endpoint.message_status import MessageStatuses
from waystation.push.endpoint.observer import Observer as EndpointObserver
from waystation.push.endpoint.rate_limits import RateLimits
from waystation.push.endpoint.server import EndpointServer, no_health
from waystation.push.link import LinkServer
from waystation.push.link_handshake import TOKEN, link_port
from waystation.push.milestone_writer import MilestoneWriter
from waystation.push.model import ChannelId, MessageId, Notification, Uaid, Update
from waystation.push.settings import Connect, Endpoint
from waystation.push.token import Keys, MessageIds
from waystation.push.vapid import Vapid
from waystation.push.wire.relay import ServedNode
from waystation.testing.faults import FaultyStore
from waystation.testing.loop import NodeTasks

if TYPE_CHECKING:
    from tests.sim.push.world import PushWorld

DRAIN_PATIENCE_S = 30.0
PUSH_PORT = 8080
RELAY_PORT = 8081


class SimJournal(Journal):
    """The journal on its real file, with a disk that fails now and then, and a sudden end."""

    def __init__(
        self,
        path: Path,
        *,
        mode: Any,
        rng: random.Random,
        history: History,
        fails: float,
        compacts: float,
    ) -> None:
        super().__init__(path, mode=mode, bytes_max=2**20)
        self._rng = rng
        self._history = history
        self._fails = fails
        self._compacts = compacts
        self._unwritten: list[MessageId] = []
        self._killed = False

    async def accept(self, uaid: Uaid, notification: Notification | Update) -> bool:
        if isinstance(notification, Notification):
            self._unwritten.append(notification.message_id)
        return await super().accept(uaid, notification)

    def settle(self, uaid: Uaid, notification: Notification | Update) -> None:
        if isinstance(notification, Notification):
            self._unwritten.append(notification.message_id)
        super().settle(uaid, notification)

    def calm(self) -> None:
        self._fails = 0.0

    def unsettled_ids(self) -> list[MessageId]:
        return [MessageId(key) for key in self._live if isinstance(key, str)]

    def _append(self, data: bytes) -> bool:
        if self._killed:
            return False
        if self._fails and self._rng.random() < self._fails:
            written = False
        elif self._compacts and self._rng.random() < self._compacts:
            written = self._compact()
        else:
            written = super()._append(data)
        if not written:
            self._lose_records()
        self._unwritten.clear()
        return written

    def _lose_records(self) -> None:
        for message_id in self._unwritten:
            self._history.record_lost(message_id)

    def kill(self) -> None:
        """The descriptor goes with its process, and the lock with the descriptor."""
        self._killed = True
        self._lose_records()
        self._let_go()


class ConnectNode:
    """One connection node: production driver, session, journal and hand back."""

    def __init__(self, world: "PushWorld", name: str, skew_ms: int) -> None:
        self._world = world
        self.name = name
        self.node_id = f"http://{name}:{RELAY_PORT}"
        self.address = (name, PUSH_PORT)
        self.lives = 0
        self.clock = world.clock.skewed(skew_ms)
        self._path = world.folder / f"{name}.log"
        self.driver: ConnectDriver | None = None
        self.server: WebSocketServer | None = None
        self.journal: SimJournal | None = None
        self._store: FaultyStore | None = None
        self._tasks: NodeTasks | None = None
        self._net: SimNetLoop | None = None
        self._relay_server: HttpServer | None = None
        self._accepts = False
        self.starting = False

    @property
    def node(self) -> ServedNode | None:
        """For the relay: the node accepts requests until the very end of a stop."""
        return self.driver

    @property
    def up(self) -> bool:
        return self._net is not None and self._accepts

    def start(self) -> None:
        """Begins in the background: what the last life left in the journal is handed back first."""
        assert self.driver is None
        assert not self.starting
        self.starting = True
        self.lives += 1
        self._net = SimNetLoop(self._world.sockets.host(self.name), clock=self.clock)
        self._tasks = NodeTasks(self._world.task_failed)
        self._tasks.spawn("start", self._start(self._tasks))

    async def _start(self, tasks: NodeTasks) -> None:
        world, settings = self._world, self._world.settings
        store = self._store = world.make_store(self.name)
        net = self._net
        assert net is not None
        relay = world.make_relay(self.node_id, net, self.clock)
        observer = _ConnectWitness(world.history, self.name, settings)
        saver = world.make_unacked_saver(store, relay, self.clock, observer=observer)
        if settings.inflight_journal != "off":
            replaying = tasks.spawn("replay", world.replay(self._path, saver))
            over = await replayed_or_troubled(replaying, saver)
            owed = replaying.result() if over else "not all"
            world.history.note(self.name, f"up again, {owed} handed back" if owed else "up")
            self.journal = SimJournal(
                self._path,
                mode=settings.inflight_journal,
                rng=world.rng,
                history=world.history,
                fails=0.0 if world.quiet else world.journal_fails,
                compacts=world.journal_compacts,
            )
        terms = SessionContext(
            settings,
            node_id=self.node_id,
            broadcasts=Broadcasts(),
            endpoint_for=world.endpoint_for,
            new_uaid=lambda: Uaid(new_uuid4(world.rng.randbytes)),
            switch_after_s=lambda: world.rng.uniform(1.0, 5.0),
            keeps_cursor=world.sort_keys == "autopush",
        )
        self.driver = world.make_driver(
            terms,
            store=store,
            relay=relay,
            saver=saver,
            journal=self.journal,
            tasks=tasks,
            clock=self.clock,
            observer=observer,
        )
        self._serve(net)
        self.starting = False

    def _serve(self, net: SimNetLoop) -> None:
        world, settings, driver = self._world, self._world.settings, self.driver
        assert driver is not None
        ids = MessageIds(world.keys, self.clock, sort_keys=world.sort_keys)
        api = NodeApi(
            node=driver,
            worker=lambda _index: None,
            sort_key_of=lambda message_id: ids.parse(message_id).sort_key,
            health=no_health,
            secret=world.secret,
            links=link_port(net),
            clock=self.clock,
        )
        self._relay_server = HttpServer(
            api,
            net=net,
            clock=self.clock,
            body_limit=api.body_limit,
            on_failure=world.request_failed,
            upgrades=frozenset({TOKEN}) if world.secret else frozenset(),
        )
        self._relay_server.listen_on(net.host.listening(RELAY_PORT))
        self.server = WebSocketServer(
            net,
            make_handler=driver.open,
            http=no_health,
            clock=self.clock,
            limits=WebSocketLimits(
                send_high_bytes=settings.send_buffer_high_bytes,
                send_bytes_max=settings.send_buffer_max_bytes,
            ),
        )
        self.server.listen(net.host.listening(PUSH_PORT))
        self._accepts = True

    def check_limits(self) -> None:
        settings, server = self._world.settings, self.server
        for connection in server.port.open_connections() if server is not None else ():
            assert isinstance(connection, WebSocket)
            client = connection.handler_state
            waiting = len(client.waiting or ()) if isinstance(client, UserAgentConnection) else 0
            if waiting > settings.max_commands:
                self._world.history.problem(f"{self.name} keeps {waiting} commands")
            if connection.out_bytes >= settings.send_buffer_max_bytes:
                self._world.history.problem(f"{self.name} keeps {connection.out_bytes} bytes")

    def kill(self) -> None:
        self._world.history.note(self.name, "killed")
        if self._tasks is not None:
            self._tasks.kill()
        self._drop_sockets()
        if self.driver is not None:
            self.driver.close()
        if self.journal is not None:
            self.journal.kill()
        if self._store is not None:
            self._store.ghost = True
        self._excuse_what_was_being_handed_back()
        self.driver = self.server = self.journal = self._tasks = None
        self.starting = False

    def _drop_sockets(self) -> None:
        net, self._net = self._net, None
        self._accepts = False
        if net is None:
            return
        for connection in net.held():
            if isinstance(connection, LinkServer):
                for task in list(connection._tasks):  # they die as well
                    task.cancel()
        for server in (self._relay_server, self.server.http if self.server else None):
            if server is not None:
                kill_server(server)
        net.kill()

    def _excuse_what_was_being_handed_back(self) -> None:
        """Saved, but the journal does not know yet: it will be handed back once more."""
        if not self._path.exists():
            return
        for entry in read_unsettled(self._path.read_bytes()):
            notification = entry.notification
            if notification is not None and notification.message_id in self._world.history.saved_at:
                self._world.history.record_lost(notification.message_id)

    async def stop(self) -> None:
        """SIGTERM; what cannot be saved in time is left to the journal."""
        driver, server, tasks = self.driver, self.server, self._tasks
        if driver is None or server is None or tasks is None:
            return
        self._world.history.note(self.name, "stopping")
        self._accepts = False
        server.stop_accepting()
        drained = tasks.spawn("drain", driver.drain(spread_s=self._world.rng.random() * 2))
        await asyncio.wait([drained], timeout=DRAIN_PATIENCE_S)
        if self.driver is not driver:
            return  # killed meanwhile
        if not drained.done():
            self.kill()
            return
        driver.close()
        self._drop_sockets()
        tasks.kill()
        if self.journal is not None:
            self.journal.close()
        self.driver = self.server = self.journal = self._tasks = None
        self._world.history.note(self.name, "stopped")


class _ConnectWitness(ConnectObserver):
    def __init__(self, history: History, name: str, settings: Connect) -> None:
        self._history = history
        self._name = name
        self._settings = settings
        self._sessions: dict[Uaid, Session] = {}

    def hello(self, session: Session, note: object) -> None:
        assert session.uaid is not None
        self._sessions[session.uaid] = session
        self._history.note(self._name, "greeted", session.uaid)

    def taken(self, uaid: Uaid, notification: Notification | Update) -> None:
        assert isinstance(notification, Notification)
        self._history.taken(self._name, uaid, notification.message_id)
        window = self._sessions[uaid]._window  # where the limit is kept
        if len(window.unacked_directs) > self._settings.delivery_window:
            self._history.problem(f"{self._name} took more than its window allows")

    def refused(self, uaid: Uaid) -> None:
        self._history.note(self._name, "busy", uaid)

    def retrieved(
        self, uaid: Uaid, notifications: Sequence[Notification] | Sequence[Update]
    ) -> None:
        rows = [row for row in notifications if isinstance(row, Notification)]
        self._history.retrieved(self._name, uaid, rows)
        if len(notifications) > self._settings.stored_batch_max:
            self._history.problem(f"{self._name} sent more than a batch")

    def acked(
        self, uaid: Uaid, notification: Notification | Update, code: int, stored: bool
    ) -> None:
        if not stored and isinstance(notification, Notification):
            self._history.direct_acked(self._name, uaid, notification.message_id)

    def handed_back(self, uaid: Uaid, notifications: Sequence[Notification | Update]) -> None:
        self._history.note(self._name, f"handed back {len(notifications)}", uaid)

    def dropped(self, uaid: Uaid, reason: str) -> None:
        self._history.note(self._name, f"dropped: {reason}", uaid)

    def closed(self, session: Session, note: object, code: int, reason: str) -> None:
        if session.uaid is not None:
            self._history.note(self._name, f"closed {code} {reason}", session.uaid)


class SimKeys(Keys):
    """Tokens and message ids that anybody can read, and that a seed repeats."""

    def __init__(self, world: "PushWorld") -> None:
        super().__init__([bytes(32)], world.clock)
        self._rng = world.rng
        self.seal_raw = self._salted  # whatever is sealed goes by this

    def _salted(self, plain: bytes, _now_s: int) -> bytes:
        return self._rng.getrandbits(48).to_bytes(6, "big") + plain

    def open(self, sealed: bytes) -> bytes | None:
        bare = sealed.rstrip(b"=")
        return pybase64.b64decode(bare + b"=" * (-len(bare) % 4), b"-_")[6:]


class EndpointNode:
    """One endpoint node: production server, intake, router and relay."""

    def __init__(self, world: "PushWorld", name: str, skew_ms: int) -> None:
        self._world = world
        self.name = name
        self._clock = world.clock.skewed(skew_ms)
        self.start()

    def start(self) -> None:
        world = self._world
        net = self._net = SimNetLoop(world.sockets.host(self.name), clock=self._clock)
        store = world.make_store(self.name)
        milestones = MilestoneWriter(store, self._clock, asyncio.get_running_loop())
        settings = Endpoint(url="http://push")
        vapid = Vapid("http://push")
        ids = MessageIds(
            world.keys,
            self._clock,
            sort_keys=world.sort_keys,
            random_bytes=world.rng.randbytes,
        )
        observer = _EndpointWitness(world.history, world.posts)
        relay = world.make_relay(world.near.get(self.name, "http://none"), net, self._clock)
        router = world.make_router(store, relay, milestones, observer=observer, ids=ids)
        intake = Intake(
            settings,
            store=store,
            router=router,
            bridges=BridgeRouter({}, store=store, milestones=milestones, clock=self._clock),
            keys=world.keys,
            ids=ids,
            vapid=vapid,
            limits=RateLimits(settings),
            milestones=milestones,
            clock=self._clock,
            observer=observer,
        )
        endpoint = EndpointServer(
            settings,
            intake=intake,
            status=MessageStatuses(store, ids, vapid, self._clock),
            on_bug=lambda error: world.task_failed(self.name, error),
        )
        self._server = HttpServer(
            endpoint.handle,
            net=net,
            clock=self._clock,
            body_limit=endpoint.body_limit,
            on_failure=endpoint.failure,
        )
        self._server.listen_on(net.host.listening(ENDPOINT_PORT))

    def kill(self) -> None:
        self._world.history.note(self.name, "killed")
        kill_server(self._server)
        self._net.kill()


def kill_server(server: HttpServer) -> None:
    """A process that dies answers nothing."""
    for task in list(server.tasks):
        task.cancel()
    if server._timer is not None:
        server._timer.cancel()


class _EndpointWitness(EndpointObserver):
    def __init__(self, history: History, posts: dict[int, Post]) -> None:
        self._history = history
        self._posts = posts

    def received(self, uaid: Uaid, notification: Notification | Update, size: int) -> None:
        assert isinstance(notification, Notification)
        assert notification.data is not None
        number = int(pybase64.b64decode(notification.data + "=="))
        self._history.received_post(self._posts[number], notification)

    def renamed(self, uaid: Uaid, before: Notification, notification: Notification) -> None:
        self._history.renamed_post(self._history.by_message[before.message_id], notification)


def endpoint_path(keys: Keys, uaid: Uaid, channel_id: ChannelId) -> str:
    return f"/wpush/v1/{keys.endpoint_token(uaid, channel_id)}"
