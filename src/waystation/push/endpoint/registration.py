"""Registration API for devices behind a bridge (webpush §4.7).

Rule 1: checks run in the order uaid, secret, type, user agent, body; the first failure wins. A
        request that fails a check changes nothing.
Rule 2: a user agent is registered with one type; under another type it is not found.
Rule 3: a changed record is written by compare-and-set; a request that loses the race is refused
        and must be sent again.
Rule 4: new user agents cost storage and need no secret, so their rate is limited. A request with a
        bad body does not count.

A device calls GET once a day, to compare its channels with the server's and to renew its record.
"""

import contextlib
import hashlib
from typing import Any, Final

import msgspec

from waystation.base.clock import Clock
from waystation.base.decode_errors import DECODE_ERRORS
from waystation.base.ids import dashed, new_uuid4, parse_uuid
from waystation.base.limits import TokenBucket
from waystation.net.http1.message import Request, Response
from waystation.push.auth_keys import AuthKeys
from waystation.push.endpoint.bridge_router import Bridges
from waystation.push.endpoint.bridges.bridge import Bridge
from waystation.push.endpoint.observer import Observer
from waystation.push.errors import (
    BadBodyError,
    InvalidRouterTokenError,
    LostRaceError,
    NoSubscriptionError,
    NoUserAgentError,
    PayloadTooLargeError,
    RateLimitedError,
    RegistrationAuthError,
    TooManySubscriptionsError,
    UnknownRouterTypeError,
)
from waystation.push.model import ChannelId, Uaid, UserAgent
from waystation.push.settings import Endpoint
from waystation.push.store import PushStore
from waystation.push.token import Keys, parse_public_key

_JSON: Final = b"application/json"
_SCHEMES: Final = (b"bearer", b"webpush")  # an old Android client sends the second
_AUTH: Final = "Invalid Local Auth"


class Path(msgspec.Struct, frozen=True):
    """`/v1/{type}/{app_id}/registration[/{uaid}[/subscription[/{chid}]]]`"""

    router_type: str
    app_id: str
    uaid: str | None = None
    subscription: bool = False
    channel_id: str | None = None

    @property
    def methods(self) -> tuple[bytes, ...]:
        if self.channel_id is not None:
            return (b"DELETE",)
        if self.subscription or self.uaid is None:
            return (b"POST",)
        return (b"DELETE", b"GET", b"PUT")


def read_path(path: bytes) -> Path | None:
    """None for a path outside this API."""
    parts = path.decode("utf-8", "replace").split("/")
    if parts[:2] != ["", "v1"] or not all(parts[2:]):
        return None
    match parts[2:]:
        case [router_type, app_id, "registration"]:
            return Path(router_type, app_id)
        case [router_type, app_id, "registration", uaid]:
            return Path(router_type, app_id, uaid)
        case [router_type, app_id, "registration", uaid, "subscription"]:
            return Path(router_type, app_id, uaid, True)
        case [router_type, app_id, "registration", uaid, "subscription", channel_id]:
            return Path(router_type, app_id, uaid, True, channel_id)
        case _:
            return None


class _Subscription(msgspec.Struct, frozen=True):
    channel_id: str | None = msgspec.field(default=None, name="channelID")
    key: str | None = None


class _Device(msgspec.Struct, frozen=True):
    token: str | None = None
    aps: Any = None
    channel_id: str | None = msgspec.field(default=None, name="channelID")
    key: str | None = None


class Registered(msgspec.Struct, frozen=True):
    uaid: str
    channel_id: str = msgspec.field(name="channelID")
    endpoint: str
    secret: str


class Subscribed(msgspec.Struct, frozen=True):
    channel_id: str = msgspec.field(name="channelID")
    endpoint: str


class Channels(msgspec.Struct, frozen=True):
    uaid: str
    channel_ids: list[str] = msgspec.field(name="channelIDs")


_read_device = msgspec.json.Decoder(_Device).decode
_read_subscription = msgspec.json.Decoder(_Subscription).decode
_encode = msgspec.json.Encoder().encode


class Registration:
    """Handles registration requests. One per worker."""

    def __init__(
        self,
        settings: Endpoint,
        *,
        bridges: Bridges,
        store: PushStore,
        keys: Keys,
        auth_keys: AuthKeys,
        channels_max: int,
        clock: Clock,
        workers: int = 1,
        observer: Observer | None = None,
    ) -> None:
        self._bridges = bridges
        self._store = store
        self._keys = keys
        self._auth_keys = auth_keys
        self._channels_max = channels_max
        self._clock = clock
        self._observer = observer or Observer()
        self._body_bytes_max = settings.max_data_bytes
        self._endpoints = settings.url.rstrip("/") + "/wpush/"
        self._new: TokenBucket | None = None
        if settings.rate_registrations:
            self._new = TokenBucket(
                settings.rate_registrations / workers,
                max(1.0, settings.burst_registrations / workers),
            )

    async def serve(self, request: Request, path: Path) -> Response:
        """Serve a request whose method is one of `path.methods`."""
        if path.uaid is None:
            return await self._register(request, path)
        user_agent = await self._user_agent(request, path, path.uaid)
        if path.channel_id is not None:
            return await self._unsubscribe(user_agent, path.channel_id)
        if path.subscription:
            return await self._subscribe(request, user_agent)
        match request.method:
            case b"PUT":
                return await self._update(request, path, user_agent)
            case b"DELETE":
                return await self._unregister(user_agent)
            case _:
                return await self._channels(user_agent)

    # Checks of all calls except the first registration

    async def _user_agent(self, request: Request, path: Path, uaid_text: str) -> UserAgent:
        raw = parse_uuid(uaid_text)
        if raw is None:
            raise NoUserAgentError("UAID not found")
        uaid = Uaid(raw)
        self._check_secret(request, uaid)
        self._bridge(path)
        user_agent = await self._store.get_user_agent(uaid)
        if user_agent is None or user_agent.router_type != path.router_type:
            raise NoUserAgentError("UAID not found")
        return user_agent

    def _check_secret(self, request: Request, uaid: Uaid) -> None:
        header = request.headers.get(b"authorization")
        if header is None:
            raise RegistrationAuthError(f"{_AUTH} missing auth header")
        scheme, _, secret = header.strip().partition(b" ")
        secret = secret.strip()
        if not secret or scheme.lower() not in _SCHEMES:
            raise RegistrationAuthError(f"{_AUTH} missing auth token")
        if not self._auth_keys.verify(uaid, secret):
            raise RegistrationAuthError(f"{_AUTH} incorrect auth token")

    def _bridge(self, path: Path) -> Bridge:
        bridge = self._bridges.get(path.router_type)
        if bridge is None:
            raise UnknownRouterTypeError("Invalid router type")
        return bridge

    # The calls

    async def _register(self, request: Request, path: Path) -> Response:
        bridge = self._bridge(path)
        device = self._device(request)
        data = self._router_data(bridge, path, device)
        channel_id = _channel_id(device.channel_id)
        key_hash = _key_hash(device.key)
        if self._new is not None:
            wait_s = self._new.take(self._clock.mono())
            if wait_s:
                raise RateLimitedError("Too many new registrations", retry_after_s=wait_s)
        uaid = Uaid(new_uuid4())
        user_agent = UserAgent(
            uaid=uaid,
            connected_at_ms=self._clock.now_ms(),
            router_type=path.router_type,
            router_data=data,
        )
        if not await self._store.add_user_agent(user_agent):
            raise LostRaceError("Please try again")
        await self._add_channel(uaid, channel_id)
        self._observer.registered(uaid, path.router_type)
        return _json(
            Registered(
                dashed(uaid),
                dashed(channel_id),
                self._endpoint(uaid, channel_id, key_hash),
                self._auth_keys.secret_of(uaid),
            )
        )

    async def _update(self, request: Request, path: Path, user_agent: UserAgent) -> Response:
        """Replace the device token."""
        data = self._router_data(self._bridge(path), path, self._device(request))
        if not await self._claim(user_agent, data):
            raise LostRaceError("Please try again")
        self._observer.registration_updated(user_agent.uaid, user_agent.router_type)
        return Response.of(200)

    async def _channels(self, user_agent: UserAgent) -> Response:
        """Return the channels and renew the record. A lost race needs no retry: the other request
        has renewed the record."""
        await self._claim(user_agent, user_agent.router_data)
        channels = await self._store.get_channels(user_agent.uaid)
        self._observer.registration_checked(user_agent.uaid, user_agent.router_type)
        return _json(Channels(dashed(user_agent.uaid), sorted(dashed(one) for one in channels)))

    async def _subscribe(self, request: Request, user_agent: UserAgent) -> Response:
        self._check_size(request)
        channel_id, key = _wanted(request)
        key_hash = _key_hash(key)
        uaid = user_agent.uaid
        await self._add_channel(uaid, channel_id)
        self._observer.channel_added(uaid, user_agent.router_type)
        endpoint = self._endpoint(uaid, channel_id, key_hash)
        return _json(Subscribed(dashed(channel_id), endpoint))

    async def _unsubscribe(self, user_agent: UserAgent, channel_text: str) -> Response:
        raw = parse_uuid(channel_text)
        if raw is None or not await self._store.remove_channel(user_agent.uaid, ChannelId(raw)):
            raise NoSubscriptionError("No such subscription")
        self._observer.channel_removed(user_agent.uaid, user_agent.router_type)
        return Response.of(200)

    async def _unregister(self, user_agent: UserAgent) -> Response:
        if not await self._store.remove_user_agent(user_agent.uaid):
            raise NoUserAgentError("UAID not found")
        self._observer.unregistered(user_agent.uaid, user_agent.router_type)
        return Response.of(200)

    # Parts of calls

    def _check_size(self, request: Request) -> None:
        if request.oversize:
            raise PayloadTooLargeError(f"A body may have at most {self._body_bytes_max} bytes")

    def _device(self, request: Request) -> _Device:
        self._check_size(request)
        if not _is_json(request):
            raise BadBodyError("Content-Type must be application/json")
        try:
            return _read_device(request.body)
        except DECODE_ERRORS as error:
            raise BadBodyError(str(error)) from None

    def _router_data(self, bridge: Bridge, path: Path, device: _Device) -> dict[str, Any]:
        if not device.token:
            raise InvalidRouterTokenError("Invalid router token")
        return bridge.registered(path.app_id, device.token, device.aps)

    async def _claim(self, user_agent: UserAgent, data: dict[str, Any] | None) -> bool:
        # Above the time that was read, even if this machine's clock is behind: writes compare it.
        now_ms = max(self._clock.now_ms(), user_agent.connected_at_ms + 1)
        return await self._store.claim_route(
            msgspec.structs.replace(user_agent, connected_at_ms=now_ms, router_data=data)
        )

    async def _add_channel(self, uaid: Uaid, channel_id: ChannelId) -> None:
        limit = self._channels_max
        if await self._store.add_channel(uaid, channel_id, channels_max=limit):
            return
        if await self._store.get_user_agent(uaid) is None:
            raise NoUserAgentError("UAID not found")
        raise TooManySubscriptionsError(f"A user agent may have at most {limit} subscriptions")

    def _endpoint(self, uaid: Uaid, channel_id: ChannelId, key_hash: bytes | None) -> str:
        version = "v1" if key_hash is None else "v2"
        token = self._keys.endpoint_token(uaid, channel_id, key_hash)
        return f"{self._endpoints}{version}/{token}"


def _is_json(request: Request) -> bool:
    media_type = request.headers.get(b"content-type", b"").partition(b";")[0]
    return media_type.strip().lower() == _JSON


def _wanted(request: Request) -> tuple[ChannelId, str | None]:
    """Channel and key of a new subscription; an unreadable body counts as empty."""
    if _is_json(request):
        with contextlib.suppress(*DECODE_ERRORS, BadBodyError):
            body = _read_subscription(request.body)
            return _channel_id(body.channel_id), body.key
    return _channel_id(None), None


def _channel_id(text: str | None) -> ChannelId:
    if text is None:
        return ChannelId(new_uuid4())
    raw = parse_uuid(text)
    if raw is None:
        raise BadBodyError("channelID is not a UUID")
    return ChannelId(raw)


def _key_hash(text: str | None) -> bytes | None:
    if text is None:
        return None
    raw = parse_public_key(text)
    if raw is None or raw[0] != 4:
        raise BadBodyError("key is not a VAPID public key: 65 bytes in base64url, the first is 4")
    return hashlib.sha256(raw).digest()


def _json(body: msgspec.Struct) -> Response:
    return Response.of(
        200, _encode(body), content_type=_JSON, headers=b"Cache-Control: no-store\r\n"
    )
