"""A POST of an app server, step by step, and what may be done with a message afterwards.

Rule 1: the order of the checks is the specification's table (webpush 4.3); the first failure wins.
        The body has been read by then, within its limit, but it is judged only after the store
        was asked who it is for.
Rule 2: record and subscription are read for every POST; only what cannot change is cached: a
        decrypted endpoint, a verified token, and that the one may be used with the other.
Rule 3: bad input changes nothing.

This is the hot path of the endpoint: no closures, no regular expressions, one store read.
"""

import re
import sys
from collections.abc import Awaitable, Coroutine
from functools import lru_cache
from hmac import compare_digest
from typing import Any, Final, NoReturn

import msgspec
from pybase64 import b64encode_as_string

from waystation.base.clock import Clock
from waystation.base.http_message import STATUS_LINES, Familiar, Request, Response
from waystation.base.http_usual import FIRSTS_MAX
from waystation.base.ids import new_uuid4
from waystation.push.endpoint.limits import SendLimits
from waystation.push.endpoint.observer import Observer
from waystation.push.endpoint.router import Router
from waystation.push.errors import (
    InvalidRouterTypeError,
    InvalidTokenError,
    NoSubscriptionError,
    VapidError,
)
from waystation.push.milestones import MilestoneWriter
from waystation.push.model import (
    SIMPLEPUSH,
    WEBPUSH,
    MessageId,
    Milestone,
    Notification,
    Recipient,
    SortKey,
    Uaid,
    UserAgent,
)
from waystation.push.settings import Endpoint
from waystation.push.store import InstantStore, PushStore
from waystation.push.token import EndpointToken, Keys, MessageIds, split_token
from waystation.push.vapid import Sender, Vapid
from waystation.push.wire.error_forms import form_of
from waystation.push.wire.relay import Answer
from waystation.push.wire.webpush import Headers, Post, check_api_version, read_body, read_post

KINDS: Final = frozenset({WEBPUSH, SIMPLEPUSH, "fcm", "apns", "stub"})
_RELIABILITY_ID: Final = re.compile(rb"[0-9A-Za-z._-]{1,64}")
_WITHDRAW_ROWS: Final = 100  # looked at together, and so often at most
_WITHDRAW_LOOKS_MAX: Final = 10
_NO_SUBSCRIPTION: Final = "No such subscription"
# By themselves, because a member of an enum costs 75 ns where a global costs 5 (CPython 3.11).
_TAKEN: Final = Answer.TAKEN
_RECEIVED: Final = Milestone.RECEIVED


class Passed(msgspec.Struct, eq=False, gc=False):
    """What was found of a request that passed the first seven steps. They judge its first line, its
    Authorization and the time; the last five judge the rest of its head, which says how long the
    body is. What comes again is judged once."""

    endpoint: EndpointToken
    mark: object  # of the intake that found it
    post: Post | None = None  # once it has passed the last steps as well
    headers: Headers | None = None  # those of the sender
    sender: Sender | None = None
    from_ms: int = 0  # within these it need not be verified again
    until_ms: int = 0


class _Posting:
    """A POST that may be delivered and waits: it is allowed, and we know where to."""

    __slots__ = ("began", "now_ms", "passed", "request", "sender")

    def __init__(
        self,
        request: Request,
        passed: Passed,
        sender: Sender | None,
        began: float,
        now_ms: int,
    ) -> None:
        self.request = request
        self.passed = passed
        self.sender = sender
        self.began = began
        self.now_ms = now_ms


class Intake:
    """Takes what app servers send. One for each worker."""

    def __init__(
        self,
        settings: Endpoint,
        *,
        store: PushStore,
        router: Router,
        keys: Keys,
        ids: MessageIds,
        vapid: Vapid,
        limits: SendLimits,
        milestones: MilestoneWriter,
        clock: Clock,
        tracked: frozenset[bytes] = frozenset(),
        observer: Observer | None = None,
    ) -> None:
        self._store = store
        self._look_up_now = store.look_up_now if isinstance(store, InstantStore) else None
        self._router = router
        self._keys = keys
        self._ids = ids
        self._vapid = vapid
        self._limits = limits
        self._limited = limits.on
        self._milestones = milestones
        self._clock = clock
        self._mono, self._now_ms = clock.mono, clock.now_ms
        self._tracked = tracked  # hashes of the keys whose messages are tracked
        self._observer = observer or Observer()
        self._body_bytes_max = settings.max_data_bytes
        self._ttl_max_s = settings.max_notification_ttl_s
        # A path that was good is good: keys do not change while we run.
        self._opened = lru_cache(settings.token_cache_max)(self._open)
        # What is found of a request stays with its first line, if we may remember so many.
        self._remembers = settings.token_cache_max >= FIRSTS_MAX
        self._mark = object()
        # A path in `endpoint.url` stays in front, so that DELETE works behind a prefix.
        self._created = (
            STATUS_LINES[201] + b"Location: " + settings.url.rstrip("/").encode() + b"/m/"
        )

    def post(self, request: Request) -> Response | Coroutine[Any, Any, Response]:
        """`POST /wpush/{version}/{token}`, or `/wpush/{token}`: answered at once where neither the
        store nor the node of the user agent has to be waited for."""
        began = self._mono()
        now_ms = self._now_ms()
        sender: Sender | None = None
        endpoint: EndpointToken | None = None
        try:
            headers, familiar = request.headers, request.familiar
            found = None if familiar is None else familiar.found
            passed = found if type(found) is Passed and found.mark is self._mark else None
            if (
                passed is not None
                and passed.headers is headers
                and passed.from_ms <= now_ms < passed.until_ms
            ):
                endpoint, sender = passed.endpoint, passed.sender
            else:
                path = request.path
                opened = self._opened(path) if passed is None else passed.endpoint
                sender = self._vapid.sender_of(headers, now_ms / 1000)
                endpoint = _split(path, opened) if isinstance(opened, bytes) else opened
                if endpoint.key_hash is not None and (
                    sender is None or not compare_digest(endpoint.key_hash, sender.key_hash)
                ):
                    _refuse_owner(sender)
                if passed is None:
                    passed = Passed(endpoint, self._mark)
                # A path that had to be unquoted is not the one that the next request comes with.
                if familiar is not None and familiar.path == path and self._remembers:
                    _keep(familiar, passed, headers, sender)
            if self._limited:
                self._limits.check(
                    None if sender is None else sender.key_hash,
                    endpoint.uaid + endpoint.channel_id,
                    began,
                )
            look_up_now = self._look_up_now
            if look_up_now is None:
                return self._look_up(_Posting(request, passed, sender, began, now_ms))
            recipient = look_up_now(endpoint.uaid, endpoint.channel_id, now_ms)
            return self._take(request, passed, sender, began, now_ms, recipient)
        except Exception as error:
            self._failed(error, request, endpoint, sender, began)
            raise

    async def _look_up(self, posting: "_Posting") -> Response:
        """For a store that has to be waited for."""
        passed, sender = posting.passed, posting.sender
        endpoint = passed.endpoint
        try:
            recipient = await self._store.look_up(endpoint.uaid, endpoint.channel_id)
            answer = self._take(
                posting.request, passed, sender, posting.began, posting.now_ms, recipient
            )
        except Exception as error:
            self._failed(error, posting.request, endpoint, sender, posting.began)
            raise
        return answer if isinstance(answer, Response) else await answer

    def _take(  # noqa: PLR0917 - one call for every POST, and names cost as much as the call
        self,
        request: Request,
        passed: Passed,
        sender: Sender | None,
        began: float,
        now_ms: int,
        recipient: Recipient | None,
    ) -> Response | Coroutine[Any, Any, Response]:
        """Steps 8 to 15, and the direct way."""
        if (
            recipient is None
            or not recipient.subscribed
            or recipient.user_agent.router_type != WEBPUSH
        ):
            return self._not_taken(_Posting(request, passed, sender, began, now_ms), recipient)
        user_agent = recipient.user_agent
        body = request.body
        if (post := passed.post) is None:
            passed.post = post = read_post(
                request.headers, body, request.oversize, self._body_bytes_max, self._ttl_max_s
            )
        notification = self._accept(
            passed.endpoint,
            post,
            # As `read_body`, without the call.
            b64encode_as_string(body, b"-_").rstrip("=") if body else None,
            len(body),
            now_ms,
            None if sender is None else sender.key_hash,
            self._reliability_id(sender, request) if self._tracked else None,
        )
        try:
            answer = self._router.offer(user_agent, notification)
        except Exception as error:
            self._errored(notification, error)
            raise
        if answer is _TAKEN:
            return self._answer(sender, began, len(body), notification, notification.message_id)
        posting = _Posting(request, passed, sender, began, now_ms)
        return self._deliver_on(posting, answer, user_agent, notification)

    async def _not_taken(self, posting: "_Posting", recipient: Recipient | None) -> Response:
        try:
            await self._refuse(recipient, WEBPUSH)
        except Exception as error:
            endpoint = posting.passed.endpoint
            self._failed(error, posting.request, endpoint, posting.sender, posting.began)
            raise

    async def _deliver_on(
        self,
        posting: "_Posting",
        answer: Answer | Awaitable[Answer] | None,
        user_agent: UserAgent,
        notification: Notification,
    ) -> Response:
        try:
            message_id = await self._router.deliver_on(answer, user_agent, notification)
        except Exception as error:
            self._errored(notification, error)
            endpoint = posting.passed.endpoint
            self._failed(error, posting.request, endpoint, posting.sender, posting.began)
            raise
        size = len(posting.request.body)
        return self._answer(posting.sender, posting.began, size, notification, message_id)

    def _answer(
        self,
        sender: Sender | None,
        began: float,
        size: int,
        notification: Notification,
        message_id: MessageId,
    ) -> Response:
        ttl_s = notification.ttl_s
        self._observer.answered(201, None, began, size, ttl_s, sender, notification.channel_id)
        return Response(
            201,
            b"%b%b\r\nTTL: %d\r\n" % (self._created, message_id.encode(), ttl_s),
        )

    def _failed(
        self,
        error: Exception,
        request: Request,
        endpoint: EndpointToken | None,
        sender: Sender | None,
        began: float,
    ) -> None:
        self._observer.answered(
            form_of(type(error)).status,
            error,
            began=began,
            size=len(request.body),
            sender=sender,
            channel_id=None if endpoint is None else endpoint.channel_id,
        )

    def _open(self, path: bytes) -> EndpointToken | bytes:
        """Steps 1 and 2; what step 6 will complain of is left as it is."""
        version, token = _parts(path)
        check_api_version(version)
        plain = self._keys.open_token(token)
        try:
            return _split(path, plain)
        except InvalidTokenError:
            return plain

    async def recipient(self, endpoint: EndpointToken, kind: str) -> UserAgent:
        """Steps 8 to 10: who it is for, if they exist, are of that kind and still want it."""
        recipient = await self._store.look_up(endpoint.uaid, endpoint.channel_id)
        if (
            recipient is None
            or not recipient.subscribed
            or recipient.user_agent.router_type != kind
        ):
            await self._refuse(recipient, kind)
        return recipient.user_agent

    async def _refuse(self, recipient: Recipient | None, kind: str) -> NoReturn:
        """One of the steps 8 to 10 failed; the first of them is what is told."""
        if recipient is not None and recipient.user_agent.router_type != kind:
            user_agent = recipient.user_agent
            if user_agent.router_type in KINDS:
                raise InvalidRouterTypeError("The endpoint is of another kind than the user agent")
            await self._store.remove_user_agent(user_agent.uaid)
            self._observer.user_agent_dropped(user_agent.uaid)
        raise NoSubscriptionError(_NO_SUBSCRIPTION)

    def _accept(  # noqa: PLR0917 - as `_take`
        self,
        endpoint: EndpointToken,
        post: Post,
        data: str | None,
        size: int,
        now_ms: int,
        key_hash: bytes | None = None,
        reliability_id: str | None = None,
    ) -> Notification:
        """It has a name from here on, and somebody who may ask what became of it."""
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
            data,
            post.headers,
            post.urgency,
            key_hash,
            reliability_id,
        )
        self._observer.received(uaid, notification, size)
        milestones = self._milestones
        if milestones.full and reliability_id is None:
            milestones.dropped += key_hash is not None
        else:
            milestones.note(notification, _RECEIVED)
        return notification

    def _errored(self, notification: Notification, error: Exception) -> None:
        self._observer.errored(notification, form_of(type(error)).errno or 0)
        self._milestones.note(notification, Milestone.ERRORED)

    async def deliver_unsigned(self, token: bytes, post: Post, body: bytes) -> None:
        """For a gateway that speaks for an app server: v1 endpoints only, the same limits."""
        endpoint = self._keys.open_endpoint("v1", token)
        if self._limited:
            self._limits.check(None, endpoint.uaid + endpoint.channel_id, self._clock.mono())
        user_agent = await self.recipient(endpoint, WEBPUSH)
        now_ms = self._clock.now_ms()
        notification = self._accept(endpoint, post, read_body(body), len(body), now_ms)
        try:
            await self._router.deliver(user_agent, notification)
        except Exception as error:
            self._errored(notification, error)
            raise

    def _reliability_id(self, sender: Sender | None, request: Request) -> str | None:
        if sender is None or sender.key_hash not in self._tracked:
            return None
        chosen = request.headers.get(b"x-messageid")
        if chosen is not None and _RELIABILITY_ID.fullmatch(chosen):
            return chosen.decode("ascii")
        return new_uuid4().hex()

    async def withdraw(self, message_id: bytes) -> Response:
        """`DELETE /m/{message_id}`: the same answer whether or not it was still stored."""
        parsed = self._ids.parse(message_id)
        # Ids are stored with their padding; on the way through a URL it may get lost.
        text = message_id.rstrip(b"=").decode("ascii")
        text += "=" * (-len(text) % 4)
        gone = await self._store.forget(parsed.uaid, [(parsed.sort_key, MessageId(text))])
        if not gone and self._ids.shared and not parsed.sort_key.startswith("01:"):
            await self._withdraw_handed_back(parsed.uaid, MessageId(text))
        return Response.of(204)

    async def _withdraw_handed_back(self, uaid: Uaid, message_id: MessageId) -> None:
        """With Autopush's keys, what was handed back lies under another key than its id says."""
        after: SortKey | None = None
        for _ in range(_WITHDRAW_LOOKS_MAX):
            rows = await self._store.fetch(
                uaid, now_ms=self._clock.now_ms(), after=after, limit=_WITHDRAW_ROWS
            )
            for row in rows:
                if row.message_id == message_id:
                    await self._store.forget(uaid, [(row.sort_key, message_id)])
                    return
            if not rows:
                return
            after = rows[-1].sort_key


def _keep(familiar: Familiar, passed: Passed, headers: Headers, sender: Sender | None) -> None:
    """It is found with the next request that is like it."""
    familiar.found = passed
    if familiar.headers is headers:  # a new Authorization with each would be known in vain
        passed.headers, passed.sender = headers, sender
        passed.from_ms, passed.until_ms = (0, sys.maxsize) if sender is None else sender.known_ms


def _split(path: bytes, plain: bytes) -> EndpointToken:
    """Step 6."""
    return split_token(check_api_version(_parts(path)[0]), plain)


def _parts(path: bytes) -> tuple[bytes, bytes]:
    """Version and token; the first version had no name."""
    version, slash, token = path[len(b"/wpush/") :].partition(b"/")
    return (version, token) if slash else (b"v1", version)


def _refuse_owner(sender: Sender | None) -> NoReturn:
    """Step 7 failed."""
    if sender is None:
        raise VapidError("Missing VAPID public key")
    raise VapidError("VAPID public key mismatch")
