"""The process of the role `presence`: store, server, client and peer ports, metrics."""

import socket
import ssl
from collections.abc import Mapping
from pathlib import Path

import grpc
from structlog.typing import FilteringBoundLogger

from waystation.app.addresses import listen, reachable
from waystation.app.data_dir import DataDir
from waystation.app.keys import ensure_secrets
from waystation.app.settings import Settings, is_loopback_host
from waystation.app.tls import load_tls
from waystation.base.clock import SystemClock
from waystation.base.settings import SettingsError
from waystation.base.tasks import Tasks
from waystation.net.http1.message import Response
from waystation.net.http2.limits import Limits
from waystation.net.http2.port import StreamHandler
from waystation.net.http2.server import Http2Server
from waystation.net.loop import NetLoop
from waystation.ops.ops_port import ERROR, OK, Condition, OpsPort, as_json
from waystation.presence.auth import open_authority
from waystation.presence.cluster.peer_clients import PeerClients, peer_token
from waystation.presence.reports import Reports
from waystation.presence.store import Owner, PresenceStore
from waystation.presence.transport.server import PresenceServer
from waystation.storage.open import is_shared, open_presence_store
from waystation.telemetry.hashes import EventHashes

from .process_telemetry import ProcessTelemetry
from .worker_tasks import worker_tasks

PEER_MESSAGE_BYTES_MAX = 4 << 20
PEER_CONNECTIONS_MAX = 1024


class PresenceWorker:
    """A `Runtime`."""

    def __init__(self, settings: Settings, log: FilteringBoundLogger, *, index: int = 0) -> None:
        self._settings = settings
        self._log = log
        self._data = DataDir(settings.data_dir)
        self._clock = SystemClock()
        self._telemetry = ProcessTelemetry(
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
        self._net: NetLoop | None = None
        self._peer_port: Http2Server | None = None
        self.server: PresenceServer | None = None

    async def start(self) -> None:
        settings, presence, clock = self._settings, self._settings.presence, self._clock
        self._refuse_insecure_ports()
        secrets, _ = ensure_secrets(self._data, cluster_secret=settings.cluster.secret)
        self._net = net = NetLoop(clock=clock)
        self._tasks = tasks = worker_tasks(self._log)
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
        token = peer_token(secrets.cluster_secret)
        among_others = settings.presence_shared or bool(presence.peers)
        self.server = server = PresenceServer(
            presence,
            store,
            owner=Owner(presence.node_id or telemetry.node, telemetry.boot_us),
            clock=clock,
            reports=reports,
            tasks=tasks,
            make_port=self._client_port,
            authority=authority,
            shared=store if is_shared(store) else None,
            endpoints=(presence.endpoint, presence.peer_endpoint),
            peer_clients=PeerClients(token, self._peer_credentials()) if among_others else None,
            peer_token=token,
            reflects=self._reflects,
        )
        self._open_peer_port(server)
        await server.start()
        await self._ops.listen(settings, presence.ops_port, net)
        self._fill(server)

    def _refuse_insecure_ports(self) -> None:
        """Raise unless ports without TLS or authentication are on loopback."""
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
                f"presence.auth.mode is off and presence listens on {settings.presence_host}: any"
                " client could join any party; set it to jwt, or presence.insecure = true"
            )
        if problems:
            raise SettingsError(problems)

    def _client_port(self, routes: Mapping[str, StreamHandler]) -> Http2Server:
        settings, presence = self._settings, self._settings.presence
        return self._port(
            routes,
            listen(settings.presence_host, presence.port, "presence.port"),
            limits=Limits(
                streams_max=presence.connection_streams_max,
                message_bytes_max=presence.max_message_bytes,
                keepalive_s=presence.keepalive_s,
                keepalive_timeout_s=presence.keepalive_timeout_s,
            ),
            connections_max=presence.node_sessions_max,
            tls=load_tls(settings.tls),
        )

    def _open_peer_port(self, server: PresenceServer) -> None:
        """The port for other nodes and operators, with health and directory as on the client port.
        It uses the TLS of the client port; with `presence.peer_ca` it refuses peers without a
        certificate of the cluster."""
        presence, host = self._settings.presence, self._settings.presence_peer_host
        # Workers share the client port, but each is a node of its own for its peers.
        number = presence.peer_port if self._index == 0 else 0
        self._peer_port = port = self._port(
            server.peer_routes,
            listen(host, number, "presence.peer_port"),
            limits=Limits(
                message_bytes_max=PEER_MESSAGE_BYTES_MAX,
                receive_window_bytes=4 * PEER_MESSAGE_BYTES_MAX,
            ),
            connections_max=PEER_CONNECTIONS_MAX,
            tls=self._peer_tls(),
        )
        server.at_peer_port(presence.peer_endpoint or f"{reachable(host)}:{port.number}")
        port.start()

    def _port(
        self,
        routes: Mapping[str, StreamHandler],
        listener: socket.socket,
        *,
        limits: Limits,
        connections_max: int,
        tls: ssl.SSLContext | None,
    ) -> Http2Server:
        assert self._net is not None
        return Http2Server(
            routes,
            listener,
            net=self._net,
            clock=self._clock,
            limits=limits,
            connections_max=connections_max,
            tls=tls,
            on_failure=lambda exc: self._log.error("stream.failed", exc_info=exc),
        )

    @property
    def _reflects(self) -> bool:
        wish = self._settings.presence.reflection
        return wish == "on" or (wish == "auto" and not self._settings.tls.on)

    def _peer_tls(self) -> ssl.SSLContext | None:
        context, peer_ca = load_tls(self._settings.tls), self._settings.presence.peer_ca
        if context is not None and peer_ca:
            context.load_verify_locations(peer_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

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
        return 0 if self.server is None else len(self.server.broker.registry.open_streams)

    def _condition(self) -> Condition:
        if self.server is None:
            return Condition(ERROR, {"state": "starting"})
        status = OK if self.server.health.serving else ERROR
        return Condition(status, {"state": self.server.state})

    async def _parties(self) -> Response:
        return as_json(200, {} if self.server is None else self.server.broker.registry.numbers())

    def _fill(self, server: PresenceServer) -> None:
        metrics, registry = self._telemetry.metrics, server.broker.registry
        states = {
            name: metrics.gauge("presence_sessions", state=name) for name in ("active", "detached")
        }
        streams = {
            kind: metrics.gauge("presence_streams", kind=kind) for kind in ("waiting", "joined")
        }
        parties = metrics.gauge("presence_parties")
        wheel = metrics.gauge("presence_wheel_lag_seconds")

        def fill() -> None:
            numbers = registry.numbers()
            for name, cell in states.items():
                cell.value = numbers[name]
            parties.value = numbers["parties"]
            joined = sum(one.session is not None for one in registry.open_streams)
            streams["joined"].value = joined
            streams["waiting"].value = len(registry.open_streams) - joined
            wheel.value = server.lag_s

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
        if self._net is not None:
            self._net.close()
        await self._telemetry.close()

    def reload(self) -> None:
        if self.server is None:
            return
        try:
            ports = (
                (self.server.transport, load_tls(self._settings.tls)),
                (self._peer_port, self._peer_tls()),
            )
        except (ValueError, OSError) as exc:
            self._log.error("tls.not_reloaded", reason=str(exc))
            return
        for port, context in ports:
            if port is not None and context is not None:
                port.use_certificate(context)
        self._log.info("tls.reloaded")
