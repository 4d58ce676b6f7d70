"""The process of the role `presence`: one node with its store, its ports and its numbers."""

import ssl
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import grpc
from structlog.typing import FilteringBoundLogger

from waystation.base.clock import SystemClock
from waystation.base.http_message import Response
from waystation.base.settings import SettingsError
from waystation.base.tasks import Tasks
from waystation.presence.auth import open_authority
from waystation.presence.neighbours import Neighbours, peer_token
from waystation.presence.reports import Reports
from waystation.presence.server import PresenceServer
from waystation.presence.services import Service
from waystation.presence.store import Owner, PresenceStore
from waystation.presence.transport.grpcio import GrpcioTransport, ServerTls, ServicePort
from waystation.presence.transport.port import StreamHandler, Transport, paths
from waystation.storage.open_presence import is_shared, open_presence_store
from waystation.telemetry.hashes import EventHashes

from .addresses import listen, reachable
from .background import background
from .data_dir import DataDir
from .keys import ensure_secrets
from .ops_port import ERROR, OK, Condition, OpsPort, as_json
from .settings import Settings, is_loopback_host
from .telemetry_part import TelemetryPart
from .tls import load_tls


class PresenceWorker:
    """A `Runtime`."""

    def __init__(self, settings: Settings, log: FilteringBoundLogger, *, index: int = 0) -> None:
        self._settings = settings
        self._log = log
        self._data = DataDir(settings.data_dir)
        self._clock = SystemClock()
        self._telemetry = TelemetryPart(
            settings,
            self._data,
            self._clock,
            name=f"presence.{index}",
            roles=("presence",),
            connections=self._connections,
        )
        self._ops = OpsPort(
            condition=self._condition,
            metrics=self._telemetry.exposition,
            clock=self._clock,
            log=log,
            pages={b"/debug/parties": self._parties},
        )
        self._tasks: Tasks | None = None
        self._store: PresenceStore | None = None
        self._index = index
        self._beside: Sequence[Service] = ()  # what the lean transport leaves to grpcio
        self._peer_port: ServicePort | None = None
        self.server: PresenceServer | None = None

    async def start(self) -> None:
        settings, presence, clock = self._settings, self._settings.presence, self._clock
        self._refuse_open_doors()
        secrets, _ = ensure_secrets(self._data, cluster_secret=settings.cluster.secret)
        self._tasks = tasks = background(self._log)
        self._store = store = await open_presence_store(
            presence, data_dir=self._data.root, settings=settings.store, clock=clock
        )
        telemetry = self._telemetry
        telemetry.start(tasks)
        reports = Reports(
            sink=telemetry.events,
            hashes=EventHashes(secrets.event_key),
            metrics=telemetry.metrics,
            clock=clock,
            log=self._log,
            ack_sample=presence.ack_sample,
        )
        authority = await open_authority(presence.auth, clock, tasks)
        reflection = presence.reflection == "on" or (
            presence.reflection == "auto" and not settings.tls.on
        )
        token = peer_token(secrets.cluster_secret)
        among_others = settings.presence_shared or bool(presence.peers)
        self.server = server = PresenceServer(
            presence,
            store,
            owner=Owner(presence.node_id or telemetry.node, telemetry.boot_us),
            clock=clock,
            reports=reports,
            tasks=tasks,
            make_transport=self._transport,
            authority=authority,
            reflection=reflection,
            shared=store if is_shared(store) else None,
            endpoints=(presence.endpoint, presence.peer_endpoint),
            neighbours=Neighbours(token, self._peer_credentials()) if among_others else None,
            peer_token=token,
        )
        await self._open_peer_port(server)
        await server.start()
        await self._ops.listen(settings.presence_host, presence.ops_port)
        self._fill(server)

    def _refuse_open_doors(self) -> None:
        """Plain text, or nobody at the door, is for loopback."""
        settings, presence = self._settings, self._settings.presence
        if presence.insecure or is_loopback_host(settings.presence_host):
            return
        problems: list[str] = []
        if not settings.tls.on:
            problems.append(
                f"presence listens on {settings.presence_host} without TLS: set tls.cert and"
                " tls.key, presence.host = 127.0.0.1 to keep parties on this machine, or"
                " presence.insecure = true behind a proxy"
            )
        if presence.auth.mode == "off":
            problems.append(
                f"presence.auth.mode is off on {settings.presence_host}: anybody could join any"
                " party; set it to jwt, or presence.insecure = true"
            )
        if problems:
            raise SettingsError(problems)

    def _transport(self, handler: StreamHandler, services: Sequence[Service]) -> Transport:
        settings, presence = self._settings, self._settings.presence
        host, tls = settings.presence_host, settings.tls
        if presence.transport == "grpcio":
            return GrpcioTransport(
                handler,
                presence,
                host=host,
                port=presence.port,
                paths=paths(presence.rpc_path_aliases),
                tls=ServerTls(cert=tls.cert, key=tls.key) if tls.on else None,
                services=services,
            )
        from waystation.presence.transport.native.limits import Limits  # noqa: PLC0415
        from waystation.presence.transport.native.server import NativeTransport  # noqa: PLC0415

        self._beside = services
        context = load_tls(tls)
        return NativeTransport(
            handler,
            paths(presence.rpc_path_aliases),
            listen(host, presence.port, "presence.port"),
            limits=Limits(
                streams_max=presence.connection_streams_max,
                message_bytes_max=presence.max_message_bytes,
                keepalive_s=presence.keepalive_s,
                keepalive_timeout_s=presence.keepalive_timeout_s,
            ),
            connections_max=presence.node_sessions_max,
            tls=context,
            load_certificate=partial(_load_pair, cert=tls.cert, key=tls.key),
            on_failure=lambda exc: self._log.error("stream.failed", exc_info=exc),
        )

    async def _open_peer_port(self, server: PresenceServer) -> None:
        """Other nodes and operators come here; and since the lean transport carries streams only,
        whoever asks for health, reflection or the directory. It is as safe as the other port; and
        with `presence.peer_ca` it answers nobody without a certificate of the cluster's."""
        settings, presence = self._settings, self._settings.presence
        if not settings.presence_peers:
            return
        tls, host = settings.tls, settings.presence_host
        self._peer_port = port = ServicePort(
            [*server.peer_services, *self._beside],
            host=host,
            # Workers share the port of clients; but each is a node that others must reach.
            port=presence.peer_port if self._index == 0 else 0,
            tls=ServerTls(cert=tls.cert, key=tls.key, client_ca=presence.peer_ca)
            if tls.on
            else None,
        )
        server.at_peer_port(presence.peer_endpoint or f"{reachable(host)}:{port.port}")
        await port.start()

    def _peer_credentials(self) -> grpc.ChannelCredentials | None:
        tls, peer_ca = self._settings.tls, self._settings.presence.peer_ca
        if not tls.on:
            return None
        return grpc.ssl_channel_credentials(
            Path(peer_ca).read_bytes() if peer_ca else None,
            Path(tls.key).read_bytes(),
            Path(tls.cert).read_bytes(),
        )

    # --- operations ------------------------------------------------------------------------------

    def _connections(self) -> int:
        return 0 if self.server is None else len(self.server.broker.registry.conversations)

    def _condition(self) -> Condition:
        if self.server is None:
            return Condition(ERROR, {"state": "starting"})
        status = OK if self.server.health.serving else ERROR
        return Condition(status, {"state": self.server.state})

    async def _parties(self) -> Response:
        return as_json(200, {} if self.server is None else self.server.broker.registry.numbers())

    def _fill(self, server: PresenceServer) -> None:
        metrics, registry = self._telemetry.metrics, server.broker.registry
        log, loop_lag = self._telemetry.events, self._telemetry.lag
        states = {
            name: metrics.gauge("presence_sessions", state=name) for name in ("active", "detached")
        }
        parties, streams = (
            metrics.gauge("presence_parties"),
            {kind: metrics.gauge("presence_streams", kind=kind) for kind in ("open", "joined")},
        )
        wheel, lag = (
            metrics.gauge("presence_wheel_lag_seconds"),
            metrics.gauge("presence_loop_lag_seconds"),
        )
        lost = metrics.counter("presence_events_lost")

        def fill() -> None:
            numbers = registry.numbers()
            for name, cell in states.items():
                cell.value = numbers[name]
            parties.value = numbers["parties"]
            joined = sum(one.session is not None for one in registry.conversations)
            streams["joined"].value = joined
            streams["open"].value = len(registry.conversations) - joined
            wheel.value = server.lag_s
            lag.value = loop_lag.worst_recent_s
            lost.value = log.lost_total

        metrics.on_read(fill)

    # --- the end ---------------------------------------------------------------------------------

    async def drain(self, over_s: float) -> None:
        if self.server is not None:
            await self.server.drain(over_s)

    async def stop(self) -> None:
        if self.server is not None:
            await self.server.close()
        if self._peer_port is not None:
            await self._peer_port.close()
        await self._ops.close()
        if self._tasks is not None:
            await self._tasks.close()
        if self._store is not None:
            await self._store.close()
        await self._telemetry.close()

    def reload(self) -> None:
        if self.server is None:
            return
        try:
            load_tls(self._settings.tls)  # a pair that does not fit must not replace one that works
            self.server.transport.reload_tls()
            if self._peer_port is not None:
                self._peer_port.reload_tls()
        except (ValueError, OSError) as exc:
            self._log.error("tls.not_reloaded", reason=str(exc))
            return
        self._log.info("tls.reloaded")


def _load_pair(context: ssl.SSLContext, *, cert: str, key: str) -> None:
    context.load_cert_chain(cert, key)
