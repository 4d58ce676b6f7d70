"""Accepts POSTs of app servers: checks them in order, delivers, and withdraws messages by id.

Rule 1: the checks run in the order of the specification's table (webpush 4.3); the first failure
        wins. The body has been read by then, within its limit, but is checked after the store
        look-up of user agent and subscription.
Rule 2: record and subscription are read for every POST. Only immutable results are cached:
        decrypted endpoints and verified VAPID tokens.
Rule 3: a request that fails a check changes nothing.
"""

import re
from collections.abc import Collection
from functools import lru_cache
from hmac import compare_digest
from typing import Final

from waystation.base.clock import Clock
from waystation.base.ids import new_uuid4
from waystation.net.http1.message import STATUS_LINES, Request, Response
from waystation.push.endpoint.bridge_router import BridgeRouter
from waystation.push.endpoint.observer import Observer
from waystation.push.endpoint.rate_limits import RateLimits
from waystation.push.endpoint.router import Router
from waystation.push.errors import (
    InvalidRouterTypeError,
    InvalidTokenError,
    NoSubscriptionError,
    VapidError,
)
from waystation.push.milestone_writer import MilestoneWriter
from waystation.push.model import (
    SIMPLEPUSH,
    WEBPUSH,
    MessageId,
    Milestone,
    Notification,
    SortKey,
    Uaid,
    UserAgent,
)
from waystation.push.settings import Endpoint
from waystation.push.store import PushStore
from waystation.push.token import EndpointToken, Keys, MessageIds, split_token
from waystation.push.vapid import Sender, Vapid
from waystation.push.wire.error_forms import form_of
from waystation.push.wire.webpush import Post, check_api_version, read_body, read_post

BRIDGED: Final = frozenset({"fcm", "apns", "stub"})
NOTIFIED: Final = BRIDGED | {WEBPUSH}  # router types that receive notifications
KINDS: Final = NOTIFIED | {SIMPLEPUSH}
_RELIABILITY_ID: Final = re.compile(rb"[0-9A-Za-z._-]{1,64}")
_WITHDRAW_ROWS: Final = 100  # rows per fetch, and fetches per DELETE at most
_WITHDRAW_LOOKS_MAX: Final = 10
_BEHIND_ALL: Final = "~"  # sorts after every character of a sort key
_NO_SUBSCRIPTION: Final = "No such subscription"


class Intake:
    """Handles requests of app servers. One per worker."""

    def __init__(
        self,
        settings: Endpoint,
        *,
        store: PushStore,
        router: Router,
        bridges: BridgeRouter,
        keys: Keys,
        ids: MessageIds,
        vapid: Vapid,
        limits: RateLimits,
        milestones: MilestoneWriter,
        clock: Clock,
        tracked: frozenset[bytes] = frozenset(),
        observer: Observer | None = None,
    ) -> None:
        self._store = store
        self._router = router
        self._bridges = bridges
        self._keys = keys
        self._ids = ids
        self._vapid = vapid
        self._limits = limits
        self._milestones = milestones
        self._clock = clock
        self._tracked = tracked  # hashes of VAPID keys whose messages are tracked
        self._observer = observer or Observer()
        self._body_bytes_max = settings.max_data_bytes
        self._ttl_max_s = settings.max_notification_ttl_s
        # Decrypted paths can be cached: keys do not change while the process runs.
        self._opened = lru_cache(settings.token_cache_max)(self._open)
        # Location keeps the path of `endpoint.url`, so that DELETE works behind a prefix.
        self._created = (
            STATUS_LINES[201] + b"Location: " + settings.url.rstrip("/").encode() + b"/m/"
        )

    async def post(self, request: Request) -> Response:
        """`POST /wpush/{version}/{token}`, or `/wpush/{token}`."""
        began, now_ms = self._clock.mono(), self._clock.now_ms()
        sender: Sender | None = None
        endpoint: EndpointToken | None = None
        try:
            endpoint = self._opened(request.path)  # steps 1 and 2
            sender = self._vapid.sender_of(request.headers, now_ms / 1000)  # 3 to 5
            if endpoint is None:
                raise InvalidTokenError("Invalid token")  # 6
            _check_owner(endpoint, sender)  # 7
            key_hash = None if sender is None else sender.key_hash
            self._limits.check(key_hash, endpoint.uaid + endpoint.channel_id, began)
            user_agent = await self.recipient(endpoint, NOTIFIED)  # 8 to 10
            post = read_post(  # 11 to 15
                request.headers,
                request.body,
                request.oversize,
                self._body_bytes_max,
                self._ttl_max_s,
            )
            notification = self._accept(
                endpoint,
                user_agent,
                post,
                request.body,
                now_ms=now_ms,
                key_hash=key_hash,
                reliability_id=self._tracking(request, key_hash),
            )
            message_id = await self._deliver(user_agent, notification)
        except Exception as error:
            self._observer.answered(
                form_of(type(error)).status,
                error,
                began=began,
                size=len(request.body),
                sender=sender,
                channel_id=None if endpoint is None else endpoint.channel_id,
            )
            raise
        self._observer.answered(
            201,
            None,
            began=began,
            size=len(request.body),
            ttl_s=notification.ttl_s,
            sender=sender,
            channel_id=notification.channel_id,
        )
        location = message_id.encode()
        return Response(201, b"%b%b\r\nTTL: %d\r\n" % (self._created, location, notification.ttl_s))

    def _open(self, path: bytes) -> EndpointToken | None:
        """Steps 1 and 2. None for a valid token of another version than the path's: step 6 reports
        it, after the checks of the signature."""
        version, token = _parts(path)
        check_api_version(version)
        plain = self._keys.open_token(token)
        try:
            return split_token(version.decode(), plain)
        except InvalidTokenError:
            return None

    async def recipient(self, endpoint: EndpointToken, kinds: Collection[str]) -> UserAgent:
        """Steps 8 to 10: the user agent, if it exists, has one of these router types and still has
        the subscription."""
        recipient = await self._store.look_up(endpoint.uaid, endpoint.channel_id)
        if recipient is None:
            raise NoSubscriptionError(_NO_SUBSCRIPTION)
        user_agent = recipient.user_agent
        if user_agent.router_type not in kinds:
            if user_agent.router_type in KINDS:
                raise InvalidRouterTypeError("The endpoint is of another kind than the user agent")
            await self._store.remove_user_agent(user_agent.uaid)
            self._observer.user_agent_dropped(user_agent.uaid)
            raise NoSubscriptionError(_NO_SUBSCRIPTION)
        if not recipient.subscribed:
            raise NoSubscriptionError(_NO_SUBSCRIPTION)
        return user_agent

    def _accept(
        self,
        endpoint: EndpointToken,
        user_agent: UserAgent,
        post: Post,
        body: bytes,
        *,
        now_ms: int,
        key_hash: bytes | None = None,
        reliability_id: str | None = None,
    ) -> Notification:
        """Make the notification, with its message id, and report it as received."""
        uaid, channel_id = endpoint.uaid, endpoint.channel_id
        if post.topic is None:
            message_id, sort_key = self._ids.for_endpoint(endpoint, now_ms)
        else:
            message_id, sort_key = self._ids.for_topic(uaid, channel_id, post.topic)
        notification = Notification(
            channel_id,
            message_id,
            sort_key,
            now_ms,
            post.ttl_s,
            post.topic,
            read_body(body),
            post.headers,
            post.urgency,
            key_hash,
            reliability_id,
        )
        if user_agent.router_type in BRIDGED:
            via = user_agent.router_type
            self._observer.received_for_bridge(uaid, notification, len(body), via)
        else:
            self._observer.received(uaid, notification, len(body))
        self._milestones.note(notification, Milestone.RECEIVED)
        return notification

    async def _deliver(self, user_agent: UserAgent, notification: Notification) -> MessageId:
        """Deliver or store the notification. Returns its final message id."""
        try:
            if user_agent.router_type in BRIDGED:
                await self._bridges.deliver(user_agent, notification)
                return notification.message_id
            return await self._router.deliver(user_agent, notification)
        except Exception as error:
            self._observer.errored(notification, form_of(type(error)).errno or 0)
            self._milestones.note(notification, Milestone.ERRORED)
            raise

    async def deliver_unsigned(self, token: bytes, post: Post, body: bytes) -> None:
        """Deliver for a gateway that represents an app server: v1 endpoints only, same limits."""
        endpoint = self._keys.open_endpoint("v1", token)
        self._limits.check(None, endpoint.uaid + endpoint.channel_id, self._clock.mono())
        user_agent = await self.recipient(endpoint, NOTIFIED)
        notification = self._accept(endpoint, user_agent, post, body, now_ms=self._clock.now_ms())
        await self._deliver(user_agent, notification)

    def _tracking(self, request: Request, key_hash: bytes | None) -> str | None:
        """The reliability id, if the sender's key is tracked."""
        if key_hash not in self._tracked:
            return None
        chosen = request.headers.get(b"x-messageid")
        if chosen is not None and _RELIABILITY_ID.fullmatch(chosen):
            return chosen.decode("ascii")
        return new_uuid4().hex()

    async def withdraw(self, message_id: bytes) -> Response:
        """`DELETE /m/{message_id}`: same answer whether or not the message was still stored."""
        parsed = self._ids.parse(message_id)
        # Stored ids have base64 padding; in a URL it may be missing.
        text = message_id.rstrip(b"=").decode("ascii")
        text += "=" * (-len(text) % 4)
        uaid, own_id = parsed.uaid, MessageId(text)
        row = await self._find(uaid, own_id, parsed.sort_key)
        # With Autopush's keys, a handed-back message has another key than its id contains.
        if row is None and self._ids.shared and not parsed.sort_key.startswith("01:"):
            row = await self._find(uaid, own_id, None)
        if row is not None and await self._store.forget(uaid, [(row.sort_key, own_id)]):
            self._observer.withdrawn(row)
            self._milestones.note(row, Milestone.WITHDRAWN)
        return Response.of(204)

    async def _find(
        self, uaid: Uaid, message_id: MessageId, sort_key: SortKey | None
    ) -> Notification | None:
        """The stored message. With a sort key it is the first row after the position before that
        key; without one all rows are searched."""
        after, looks, limit = None, _WITHDRAW_LOOKS_MAX, _WITHDRAW_ROWS
        if sort_key is not None:
            before = chr(ord(sort_key[-1]) - 1) + _BEHIND_ALL
            after, looks, limit = SortKey(sort_key[:-1] + before), 1, 1
        for _ in range(looks):
            rows = await self._store.fetch(
                uaid, now_ms=self._clock.now_ms(), after=after, limit=limit
            )
            for row in rows:
                if row.message_id == message_id:
                    return row
            if not rows:
                return None
            after = rows[-1].sort_key
        return None


def _parts(path: bytes) -> tuple[bytes, bytes]:
    """Version and token; a path without a version is v1."""
    version, slash, token = path[len(b"/wpush/") :].partition(b"/")
    return (version, token) if slash else (b"v1", version)


def _check_owner(endpoint: EndpointToken, sender: Sender | None) -> None:
    """Step 7: a v2 endpoint accepts only the VAPID key of its subscription."""
    if endpoint.key_hash is None:
        return
    if sender is None:
        raise VapidError("Missing VAPID public key")
    if not compare_digest(endpoint.key_hash, sender.key_hash):
        raise VapidError("VAPID public key mismatch")
