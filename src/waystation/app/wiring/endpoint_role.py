"""The role endpoint of one worker: HTTP server for app servers."""

import hashlib
import ssl

from waystation.app.addresses import listen
from waystation.app.descriptor_limits import within
from waystation.base.settings import SettingsError
from waystation.net.http1.message import Request, Response
from waystation.net.http1.server import HttpLimits, HttpServer
from waystation.ops.health import health_response
from waystation.push.auth_keys import AuthKeys
from waystation.push.endpoint.bridge_router import BridgeRouter
from waystation.push.endpoint.intake import Intake
from waystation.push.endpoint.matrix import MatrixGateway
from waystation.push.endpoint.message_status import MessageStatuses
from waystation.push.endpoint.rate_limits import RateLimits
from waystation.push.endpoint.registration import Registration
from waystation.push.endpoint.reports import Reports
from waystation.push.endpoint.router import Router
from waystation.push.endpoint.server import EndpointServer
from waystation.push.endpoint.simplepush import SimplePushIntake
from waystation.push.token import MessageIds, parse_list, parse_public_key
from waystation.push.vapid import Vapid, audience_of

from .bridges import Bridges
from .push_context import PushContext


class EndpointRole:
    def __init__(self, context: PushContext, tls: ssl.SSLContext | None) -> None:
        settings, clock = context.settings.endpoint, context.clock
        self._context = context
        self._tls = tls
        observer = Reports(
            sink=context.events,
            hashes=context.hashes,
            metrics=context.metrics,
            clock=clock,
            names=context.names,
        )
        ids = MessageIds(context.keys, clock, sort_keys=context.settings.push.sort_keys)
        vapid = Vapid(audience_of(settings.url), cache_max=settings.vapid_cache_max)
        router = Router(
            context.store,
            context.relay,
            context.milestones,
            observer,
            ids=ids,
            own_node_id=context.node_id,
        )
        self.bridges = Bridges(context.settings, clock=clock, log=context.log)
        by_type = self.bridges.by_type
        intake = Intake(
            settings,
            store=context.store,
            router=router,
            bridges=BridgeRouter(
                by_type,
                store=context.store,
                milestones=context.milestones,
                clock=clock,
                observer=observer,
            ),
            keys=context.keys,
            ids=ids,
            vapid=vapid,
            limits=RateLimits(settings, workers=context.count),
            milestones=context.milestones,
            clock=clock,
            tracked=tracked_hashes(context.settings.push.tracking_keys),
            observer=observer,
        )
        dialect = context.settings.connect.simplepush
        self.server = EndpointServer(
            settings,
            intake=intake,
            status=MessageStatuses(context.store, ids, vapid, clock),
            simplepush=None
            if dialect == "off"
            else SimplePushIntake(
                dialect,
                intake=intake,
                router=router,
                keys=context.keys,
                clock=clock,
                observer=observer,
            ),
            matrix=MatrixGateway(settings, intake) if settings.matrix_gateway else None,
            registration=Registration(
                settings,
                bridges=by_type,
                store=context.store,
                keys=context.keys,
                auth_keys=auth_keys_of(context.secrets.auth_keys),
                channels_max=context.settings.connect.max_channels_per_uaid,
                clock=clock,
                workers=context.count,
                observer=observer,
            ),
            health=self._health,
            on_bug=self._bug,
        )
        self._http = HttpServer(
            self.server.handle,
            net=context.net,
            clock=clock,
            body_limit=self.server.body_limit,
            on_failure=self.server.failure,
            limits=HttpLimits(
                connections_max=within(context.shares.app_servers, settings.max_connections),
                idle_timeout_s=settings.idle_timeout_s,
            ),
        )

    async def start(self) -> None:
        settings = self._context.settings
        sock = self._context.listening_sockets.get("endpoint.port") or listen(
            settings.host, settings.endpoint.port, "endpoint.port"
        )
        self._http.listen_on(sock, self._tls)

    def stop_accepting(self) -> None:
        self._http.stop_accepting()

    async def close(self) -> None:
        """Answer accepted requests, then close."""
        await self._http.close()
        await self.bridges.close()

    def _health(self, request: Request) -> Response | None:
        return health_response(self._context.health, "endpoint", request)

    def _bug(self, error: BaseException) -> None:
        self._context.log.error("request.failed", exc_info=error)


def auth_keys_of(text: str) -> AuthKeys:
    keys = AuthKeys.parse(text)
    if keys is None:
        raise SettingsError(["push.auth_keys has no key in it; make one: waystation keys auth-key"])
    return keys


def tracked_hashes(tracking_keys: str) -> frozenset[bytes]:
    """SHA-256 hashes of the VAPID public keys in `push.tracking_keys`."""
    hashes: set[bytes] = set()
    for place, text in enumerate(parse_list(tracking_keys), start=1):
        raw = parse_public_key(text)
        if raw is None:
            raise SettingsError(
                [
                    f"push.tracking_keys: key {place} is not a VAPID public key (65 bytes in"
                    " base64url); convert a PEM with: waystation keys vapid FILE"
                ]
            )
        hashes.add(hashlib.sha256(raw).digest())
    return frozenset(hashes)
