"""A presence node: wires broker and services, runs periodic work, tracks readiness, drains.

Rule 1: a node is SERVING once its store has answered and its port accepts connections. It is
        NOT_SERVING while it starts, drains, is fenced or overloaded.
Rule 2: a node is overloaded from `node_sessions_max` sessions until it is below 95 % of them, and
        while its event loop has been late by more than a second for ten seconds.

No message passes through this module.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final, cast

from waystation.base.clock import Clock
from waystation.base.tasks import Tasks
from waystation.net.http2.methods import Caller, Service, service_routes
from waystation.net.http2.port import StreamHandler
from waystation.net.http2.server import Http2Server
from waystation.presence.broker import Broker
from waystation.presence.cluster.directory import NodeDirectory, ranked
from waystation.presence.cluster.membership import Membership
from waystation.presence.cluster.peer_clients import PeerClients
from waystation.presence.cluster.peer_link import PeerLink
from waystation.presence.cluster.relay import Relay, RelayedStreams
from waystation.presence.cluster.session_handover import SessionHandover
from waystation.presence.errors import STORE_TROUBLE
from waystation.presence.grants import Authority
from waystation.presence.model import Detached, Status
from waystation.presence.reports import Reports
from waystation.presence.settings import Presence, parse_peer
from waystation.presence.store import (
    MovablePresenceStore,
    Owner,
    PresenceNode,
    PresenceStore,
    SharedPresenceStore,
)
from waystation.presence.wire.presence_cluster_pb2 import RelayFrame

from .admin import PresenceAdmin
from .health import Health
from .reflection import reflection
from .rpc import CLIENT_SERVICE, paths

TOTALS_INTERVAL_S: Final = 10.0
LOOK_INTERVAL_S: Final = 1.0
LATE_S: Final = 1.0
LATE_LOOKS_MAX: Final = 10
RECOVERED: Final = 0.95
SWEEP_MAX: Final = 1000
CLOSE_GRACE_S: Final = 1.0
DRAIN_LOOK_S: Final = 0.1


MakePort = Callable[[Mapping[str, StreamHandler]], Http2Server]


class PresenceServer:
    def __init__(
        self,
        settings: Presence,
        store: PresenceStore,
        *,
        owner: Owner,
        clock: Clock,
        reports: Reports,
        tasks: Tasks,
        make_port: MakePort,
        authority: Authority | None = None,
        shared: SharedPresenceStore | None = None,
        endpoints: tuple[str, str] = ("", ""),
        peer_clients: PeerClients | None = None,
        peer_token: str = "",
        reflects: bool = False,
    ) -> None:
        """`shared` is the same store, if several nodes share it. `endpoints` are the addresses for
        clients and other nodes, if they differ from the listening ones. Without `peer_clients`
        no session is handed over. `peer_token` authenticates other nodes and operators; the
        routes of their port are in `peer_routes`. `reflects` adds server reflection."""
        self.settings = settings
        self.store = store
        self._clock = clock
        self._reports = reports
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self.broker = Broker(
            settings,
            store,
            owner=owner,
            clock=clock,
            reports=reports,
            tasks=tasks,
            loop=self._loop,
            authority=authority,
        )
        broker = self.broker
        node, registry, end = broker.node, broker.registry, broker.session_end
        self.health = Health()
        self.directory = NodeDirectory(self._nodes, authority)
        services = [self.health.service, self.directory.service]
        described = reflection(services, CLIENT_SERVICE) if reflects else []
        client_paths: dict[str, StreamHandler] = dict.fromkeys(
            paths(settings.rpc_path_aliases), self.broker
        )
        self.transport = make_port(client_paths | self._routes([*services, *described]))
        self.membership = (
            Membership(
                broker,
                registry,
                shared,
                end,
                broker.party_sync,
                reports=reports,
                node=node,
                clock=clock,
                describe=self.describe,
            )
            if shared is not None
            else None
        )
        self._endpoints = endpoints
        if self.membership is not None:
            node.shared = True
            self.broker.other_endpoints = self._other_endpoints
            self.membership.on_change = self.directory.changed
        movable = _movable(store) if shared is None else None
        self.peers = [
            PresenceNode(node_id=name, incarnation=0, client_endpoint=client, peer_endpoint=peer)
            for name, client, peer in filter(None, map(parse_peer, settings.peers))
        ]
        if self.peers and peer_clients is not None and shared is None:
            broker.relay = Relay(
                broker,
                peer_clients,
                [self._myself(), *self.peers],
                reports,
                node_id=owner.node_id,
                is_here=broker.has_party,
                redirect=settings.peer_redirect,
            )
        self.handover = (
            SessionHandover(
                registry, end, reports, peer_clients, self._nodes, node=node, movable=movable
            )
            if peer_clients is not None
            else None
        )
        peer_link = PeerLink(
            broker,
            registry,
            end,
            broker.party_sync,
            reports,
            node=node,
            tickets=broker.tickets,
            adopt=broker.adopt,
            token=peer_token,
            client_endpoint=lambda: self.describe().client_endpoint,
            movable=movable,
            relayed=self._relayed if self.peers else None,
        )
        operators = PresenceAdmin(
            registry,
            store,
            end,
            reports,
            node=node,
            authority=authority,
            token=peer_token,
            describe=self.describe,
            drain=lambda over_s: broker.run("drain", self.drain(over_s)),
            undo_drain=self.undo_drain,
        )
        services += [peer_link.service, operators.service]
        described = reflection(services) if reflects else []
        self.peer_routes = self._routes([*services, *described])
        self._ticking: asyncio.TimerHandle | None = None
        self._late_looks = 0
        self._full = False
        self.lag_s = 0.0
        self.state = "starting"

    @property
    def port(self) -> int:
        return self.transport.number

    async def start(self) -> None:
        self.health.set_serving(serving=False)
        await self.store.check()
        await self.broker.start()
        self.transport.start()
        if self.membership is not None:
            await self.membership.beat()
            self._tasks.keep("presence lease", self.membership.run)
            self._tasks.keep("presence positions", self.membership.compare_on)
        self._next_tick(self._loop.time() + self.settings.tick_s)
        settings = self.settings
        for name, every_s, work in (
            ("cursors", settings.cursor_save_s, self.broker.periodic_work.save_cursors),
            ("sweep", settings.sweep_s, self._sweep),
            ("totals", TOTALS_INTERVAL_S, self._totals),
            ("readiness", LOOK_INTERVAL_S, self.look),
        ):
            self._tasks.keep(f"presence {name}", partial(self._repeat, name, every_s, work))
        if self.handover is not None and self.membership is not None:
            shed = partial(self._repeat, "shed", settings.shed_check_s, self.handover.shed)
            self._tasks.keep("presence shed", shed)
        self._tell_state("ready")

    def _routes(self, services: Sequence[Service]) -> dict[str, StreamHandler]:
        return service_routes(
            services, self._tasks, lambda exc: self._reports.trouble("method.failed", exc)
        )

    def _nodes(self) -> Sequence[PresenceNode]:
        if self.membership is None:
            return [self.describe(), *self.peers]
        return self.membership.nodes

    def _myself(self) -> PresenceNode:
        """This node with its id only, to compute the home of a party."""
        owner = self.broker.owner
        return PresenceNode(node_id=owner.node_id, incarnation=owner.incarnation)

    def _relayed(
        self, frames: AsyncIterator[RelayFrame], caller: Caller
    ) -> AsyncIterator[RelayFrame]:
        return RelayedStreams(self.broker, caller.peer).serve(frames)

    def at_peer_port(self, endpoint: str) -> None:
        """Sets the address for other nodes, once the peer port is open."""
        self._endpoints = (self._endpoints[0], endpoint)

    def _other_endpoints(self) -> list[str]:
        mine = self.broker.owner.node_id
        return [one.client_endpoint for one in ranked(self._nodes(), 0) if one.node_id != mine]

    def describe(self) -> PresenceNode:
        """This node as the others see it."""
        owner, presence = self.broker.owner, self.settings
        client, peer = self._endpoints
        return PresenceNode(
            node_id=owner.node_id,
            incarnation=owner.incarnation,
            client_endpoint=client or f"127.0.0.1:{self.port}",
            peer_endpoint=peer,
            zone=presence.zone,
            state=self.state,
            sessions=len(self.broker.registry.sessions),
            max_sessions=presence.node_sessions_max,
            heartbeat_ms=self._clock.now_ms(),
        )

    # --- periodic work ---------------------------------------------------------------------------

    def _next_tick(self, at: float) -> None:
        self._ticking = self._loop.call_at(at, self._tick, at)

    def _tick(self, at: float) -> None:
        now = self._loop.time()
        self.lag_s = max(0.0, now - at)
        more = False
        try:
            more = self.broker.periodic_work.tick()
        finally:
            # After a blocked loop, missed ticks are not repeated.
            following = max(at + self.settings.tick_s, now)
            self._next_tick(now if more else following)

    async def _repeat(
        self, name: str, every_s: float, work: Callable[[], Coroutine[Any, Any, object]]
    ) -> None:
        """Runs `work` every `every_s`; a failure is logged and the next run follows."""
        while True:
            await asyncio.sleep(every_s)
            try:
                await work()
            except STORE_TROUBLE as exc:
                self._reports.store_trouble(name, exc)
            except Exception as exc:  # logged; the next run follows
                self._reports.trouble(f"{name}.failed", exc)

    async def _sweep(self) -> None:
        await self.store.expire_due(SWEEP_MAX)

    async def _totals(self) -> None:
        self._reports.totals()

    async def look(self) -> None:
        """Updates readiness and overload; called once a second."""
        self.broker.periodic_work.end_revoked()
        self._late_looks = self._late_looks + 1 if self.lag_s > LATE_S else 0
        sessions, most = len(self.broker.registry.sessions), self.settings.node_sessions_max
        if sessions >= most:
            self._full = True
        elif sessions < most * RECOVERED:
            self._full = False
        self.broker.node.overloaded = self._late_looks >= LATE_LOOKS_MAX
        if self.state in ("ready", "overloaded", "fenced"):
            wanted = "overloaded" if self._full or self.broker.node.overloaded else "ready"
            if self.broker.node.fenced():
                wanted = "fenced"
            if wanted != self.state:
                self._tell_state(wanted)

    def _tell_state(self, state: str) -> None:
        self.state = state
        self._reports.node_state(state, len(self.broker.registry.sessions))
        self.health.set_serving(serving=state == "ready")

    # --- drain and close -------------------------------------------------------------------------

    async def drain(self, over_s: float) -> None:
        """Refuses new sessions and hands its own over; all stay resumable."""
        self._tell_state("draining")
        self.broker.node.draining = True
        if self.membership is not None:
            await self.membership.beat()
        # Connections are still accepted: a JOIN is answered with the endpoints of other nodes.
        deadline_ms = self._clock.now_ms() + round(over_s * 1000)
        self.broker.session_end.send_drain(
            self._other_endpoints(), deadline_ms, self.broker.registry.now()
        )
        if over_s > 0 and (self.membership is not None or self.peers):
            await self._until_moved(over_s, deadline_ms)

    async def _until_moved(self, over_s: float, deadline_ms: int) -> None:
        """Hands sessions over; at the deadline the remaining streams are ended."""
        try:
            async with asyncio.timeout(over_s):
                if self.handover is not None:
                    await self.handover.drain(deadline_ms)
                busy = self.broker.registry.open_streams
                while self.broker.node.draining and busy:  # noqa: ASYNC110 polled every DRAIN_LOOK_S
                    await asyncio.sleep(DRAIN_LOOK_S)
        except TimeoutError:
            pass
        if self.broker.node.draining:
            self._end_streams()

    async def undo_drain(self) -> None:
        if not self.broker.node.draining:
            return
        if self.handover is not None:
            self.handover.stop()
        self.broker.node.draining = False
        self._tell_state("ready")
        if self.membership is not None:
            await self.membership.beat()

    async def close(self) -> None:
        self.state = "closed"
        if self._ticking is not None:
            self._ticking.cancel()
        self.transport.stop_accepting()
        self._end_streams()
        await self.transport.close(CLOSE_GRACE_S)
        try:
            await self.broker.periodic_work.save_cursors()
        except STORE_TROUBLE as exc:
            self._reports.store_trouble("cursors", exc)
        if self.membership is not None:
            await self.membership.leave()
        if self.handover is not None:
            await self.handover.close()
        self._reports.totals()

    def _end_streams(self) -> None:
        """Ends all streams with DRAINING; sessions stay in the store, resumable."""
        broker = self.broker
        for client in list(broker.registry.open_streams):
            broker.session_end.end_stream(
                client,
                Status.DRAINING,
                broker.registry.now(),
                cause=Detached.DRAIN,
                handoff=broker.elsewhere(Status.DRAINING),
            )


def _movable(store: PresenceStore) -> MovablePresenceStore | None:
    return cast(MovablePresenceStore, store) if hasattr(store, "freeze") else None
