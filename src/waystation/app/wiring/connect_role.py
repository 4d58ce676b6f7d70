"""The role connect of one worker: WebSocket server for user agents, node API on the relay port."""

import contextlib
import os
import ssl

from waystation.app.addresses import listen
from waystation.app.descriptor_limits import passing_max, within
from waystation.base.ids import new_uuid4
from waystation.net.http1.message import Request, Response
from waystation.net.http1.server import HttpLimits, HttpServer
from waystation.net.websocket.limits import WebSocketLimits
from waystation.net.websocket.server import WebSocketServer
from waystation.ops.health import health_response
from waystation.ops.ops_port import has_token, port_token, unauthorized
from waystation.push.connect.broadcast_source import BroadcastPoller, megaphone, published_here
from waystation.push.connect.broadcasts import Broadcasts
from waystation.push.connect.driver import ConnectDriver
from waystation.push.connect.endpoint_urls import EndpointUrls
from waystation.push.connect.journal import Journal
from waystation.push.connect.node_api import NodeApi
from waystation.push.connect.reports import Reports
from waystation.push.connect.session_context import SessionContext
from waystation.push.connect.unacked_saver import UnackedSaver
from waystation.push.link_handshake import TOKEN, link_port, serve_link_socket
from waystation.push.model import Uaid
from waystation.push.settings import Connect
from waystation.push.store import CursorStore
from waystation.push.token import MessageIds

from .push_context import PushContext

CLOSE_RESTART = 1012


class ConnectRole:
    """Created within the running loop, after the journal of the previous worker was replayed."""

    def __init__(
        self,
        context: PushContext,
        tls: ssl.SSLContext | None,
        reports: Reports,
        saver: UnackedSaver,
    ) -> None:
        settings = context.settings.connect
        self._context = context
        self._tls = tls
        self._link_path = ""
        self._broadcasts = Broadcasts()
        self._journal = (
            None
            if settings.inflight_journal == "off"
            else Journal(
                context.data.journal(context.index),
                mode=settings.inflight_journal,
                bytes_max=settings.inflight_max_bytes,
            )
        )
        self.driver = ConnectDriver(
            SessionContext(
                settings,
                node_id=context.node_id,
                broadcasts=self._broadcasts,
                endpoint_for=EndpointUrls(
                    context.keys, context.settings.endpoint.url, settings.simplepush
                ).url,
                new_uaid=lambda: Uaid(new_uuid4()),
                more_info_url=context.settings.endpoint.more_info_url,
                keeps_cursor=context.settings.push.sort_keys == "autopush"
                and isinstance(context.store, CursorStore),
            ),
            store=context.store,
            relay=context.relay,
            saver=saver,
            journal=self._journal,
            tasks=context.tasks,
            clock=context.clock,
            observer=reports,
        )
        self._shell = WebSocketServer(
            context.net,
            make_handler=self.driver.open,
            http=self._plain_request,
            clock=context.clock,
            limits=websocket_limits(settings, context.shares.user_agents),
        )
        self._links = link_port(context.net)
        ids = MessageIds(context.keys, context.clock)
        api = NodeApi(
            node=self.driver,
            worker=context.relay.sibling if context.count > 1 else lambda _index: None,
            sort_key_of=lambda message_id: ids.parse(message_id).sort_key,
            health=self._relay_health,
            secret=context.secrets.cluster_secret.encode(),
            links=self._links,
            clock=context.clock,
            name_of=context.names.worker,
        )
        self._node_http = HttpServer(
            api,
            net=context.net,
            clock=context.clock,
            body_limit=api.body_limit,
            on_failure=self._node_api_failed,
            limits=HttpLimits(connections_max=context.shares.nodes),
            upgrades=frozenset({TOKEN}),
        )
        source = (
            megaphone(settings.megaphone_api_url, settings.megaphone_api_token)
            if settings.megaphone_api_url
            else published_here(context.store)
        )
        self._poller = BroadcastPoller(
            self._broadcasts,
            source,
            interval_s=settings.megaphone_poll_interval_s,
            polled=self._polled,
        )

        self._metrics_token = ""

    @property
    def connections(self) -> int:
        return self._shell.connections

    async def start(self) -> None:
        context = self._context
        if not context.settings.metrics.public:
            self._metrics_token = port_token(context.settings, context.settings.host)
        await self._poller.poll()  # so that the first hello is answered with all broadcasts
        context.tasks.keep("broadcasts", self._poller.run)
        # Other nodes must be able to reach this worker before user agents connect to it.
        self._link_path = context.data.socket(link_name(context.index))
        serve_link_socket(self._links, self._link_path, self.driver, context.clock)
        sock = context.listening_sockets.get("connect.relay_port") or listen(
            context.settings.host, context.settings.connect.relay_port, "connect.relay_port"
        )
        self._node_http.listen_on(sock, self._tls if context.settings.connect.relay_tls else None)
        sock = context.listening_sockets.get("connect.port") or listen(
            context.settings.host, context.settings.connect.port, "connect.port"
        )
        self._shell.listen(sock, self._tls)

    def use_certificate(self, tls: ssl.SSLContext) -> None:
        self._shell.use_certificate(tls)

    def stop_accepting(self) -> None:
        self._shell.stop_accepting()

    async def drain(self, over_s: float) -> None:
        """Close the sessions one by one; unacked notifications are saved before this returns."""
        await self.driver.drain(spread_s=over_s)
        await self._shell.close_all(CLOSE_RESTART, "Restart")

    async def close(self) -> None:
        await self._node_http.close()
        self._links.stop_accepting()
        if self._link_path:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._link_path)
        self.driver.close()
        if self._journal is not None:
            self._journal.close()

    def _plain_request(self, request: Request) -> Response | None:
        return health_response(self._context.health, "connect", request)

    def _relay_health(self, request: Request) -> Response | None:
        token = self._metrics_token
        if token and request.path == b"/metrics" and not has_token(request, token):
            return unauthorized()
        return health_response(self._context.health, "connect", request, internal=True)

    def _node_api_failed(self, _request: Request, error: BaseException) -> Response:
        self._context.log.error("node_api.failed", exc_info=error)
        return Response.of(503)

    def _polled(self, error: Exception | None) -> None:
        reason = "" if error is None else type(error).__name__
        result = "ok" if error is None else "error"
        self._context.metrics.counter("megaphone_updater", result=result, reason=reason).value += 1
        if error is not None:
            self._context.log.warning("broadcasts.not_read", reason=str(error) or reason)


def connect_reports(context: PushContext) -> Reports:
    return Reports(
        sink=context.events,
        hashes=context.hashes,
        metrics=context.metrics,
        milestones=context.milestones,
        clock=context.clock,
        log=context.log,
        names=context.names,
    )


def make_unacked_saver(context: PushContext, reports: Reports) -> UnackedSaver:
    return UnackedSaver(
        context.store,
        context.relay,
        context.clock,
        concurrency=context.settings.connect.save_concurrency,
        observer=reports,
        fresh_keys=context.settings.push.sort_keys == "autopush",
    )


def link_name(index: int) -> str:
    """The unix socket in run/ on which worker `index` accepts links of the other workers."""
    return f"w{index}.sock"


def websocket_limits(settings: Connect, descriptors: int) -> WebSocketLimits:
    """Limits that keep user agents within their share of descriptors: arriving, connected and
    closing. As many arriving ones may be answered with a refusal as may be upgraded."""
    passing = passing_max(descriptors)
    arriving = min(WebSocketLimits().upgrading_max, passing)
    room = max(descriptors - 2 * arriving - passing, 1)
    return WebSocketLimits(
        connections_max=within(room, settings.max_connections),
        upgrading_max=arriving,
        message_bytes_max=settings.max_frame_bytes,
        send_high_bytes=settings.send_buffer_high_bytes,
        send_bytes_max=settings.send_buffer_max_bytes,
        upgrade_timeout_s=settings.open_handshake_timeout_s,
    )
