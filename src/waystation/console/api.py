"""The console's HTTP: broadcasts for publishers, a page for people, health and metrics.

Publishing (webpush §2.9): `PUT /v1/broadcasts/{broadcaster}/{channel}` with the version as raw
body, a bearer token per broadcaster; `GET /v1/broadcasts` with the reader's token.
"""

import re
from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import msgspec

from waystation.base.errors import UnavailableError
from waystation.net.http1.message import Request, Response
from waystation.push.store import published_broadcasts

from .access import is_known, is_operator, may_publish, may_read_broadcasts
from .model import Sources, Tokens
from .pages import render_status
from .settings import Console

VERSION_BYTES_MAX: Final = 200
BROADCASTER: Final = re.compile(rb"[A-Za-z0-9_-]{1,64}")
CHANNEL: Final = re.compile(rb"[A-Za-z0-9_-]{1,128}")
VERSION: Final = re.compile(rb"[\x20-\x7e]+")
# The old service cancelled a pending update with it; ours has none pending.
CANCEL: Final = b"____NOP____"
METRICS_TYPE: Final = b"text/plain; version=0.0.4; charset=utf-8"
_JSON: Final = b"application/json"
_PUBLISH: Final = re.compile(rb"/v1/broadcasts/([^/]+)/([^/]+)")
_PAGE_HEADERS: Final = (
    b"Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'\r\n"
    b"Cache-Control: no-store\r\n"
    b"X-Frame-Options: DENY\r\n"
)

Page = Callable[[Request], Awaitable[Response]]


class ConsoleServer:
    """`handle` and `body_limit` are what an `HttpServer` wants. No state of its own."""

    def __init__(
        self, settings: Console, tokens: Tokens, sources: Sources, *, metrics_public: bool = False
    ) -> None:
        self._tokens = tokens
        self._sources = sources
        self._refresh_s = settings.refresh_s
        self._metrics_public = metrics_public
        self._pages: dict[bytes, Page] = {
            b"/": self._page,
            b"/v1/status": self._status,
            b"/v1/broadcasts": self._read,
            b"/metrics": self._metrics,
        }

    def body_limit(self, request: Request) -> int:
        return VERSION_BYTES_MAX if request.method == b"PUT" else 0

    async def handle(self, request: Request) -> Response:
        published = _PUBLISH.fullmatch(request.path)
        if published is not None:
            if request.method != b"PUT":
                return _not_allowed(b"PUT")
            broadcaster, channel = map(unquote_to_bytes, published.groups())
            return await self._publish(request, broadcaster, channel)
        page = self._pages.get(request.path, self._health)
        if request.method not in (b"GET", b"HEAD"):
            return _not_allowed(b"GET, HEAD")
        return await page(request)

    async def _publish(self, request: Request, broadcaster: bytes, channel: bytes) -> Response:
        name = broadcaster.decode("ascii", "replace")
        if not may_publish(self._tokens, request.headers, name):
            if is_known(self._tokens, request.headers):
                return _error(403, f"this token may not publish for {name!r}")
            return _unauthorized(
                "a publisher's bearer token is needed (keys/broadcast_tokens.toml)"
            )
        if not BROADCASTER.fullmatch(broadcaster):
            return _error(400, "a broadcaster is 1 to 64 characters of A-Z a-z 0-9 _ -")
        if not CHANNEL.fullmatch(channel):
            return _error(400, "a channel is 1 to 128 characters of A-Z a-z 0-9 _ -")
        if request.oversize:
            return _error(413, f"a version is at most {VERSION_BYTES_MAX} bytes")
        version = request.body
        if not VERSION.fullmatch(version):
            return _error(400, "a version is 1 to 200 printable ASCII characters")
        if version == CANCEL:
            return _json(200, {"code": 200})
        try:
            new = await self._sources.store.publish_broadcast(
                f"{name}/{channel.decode()}", version.decode()
            )
        except UnavailableError:
            return _error(503, "the store does not answer; nothing was published")
        code = 201 if new else 200
        return _json(code, {"code": code})

    async def _read(self, request: Request) -> Response:
        if not may_read_broadcasts(self._tokens, request.headers):
            if is_known(self._tokens, request.headers):
                return _error(403, "this token may not read broadcasts")
            return _unauthorized("the reader's bearer token is needed (keys/broadcast_tokens.toml)")
        try:
            broadcasts = await published_broadcasts(self._sources.store)
        except UnavailableError:
            return _error(503, "the store does not answer")
        return _json(200, {"code": 200, "broadcasts": dict(broadcasts)})

    async def _page(self, request: Request) -> Response:
        if not self._is_operator(request):
            return _ask_for_token()
        html = render_status(await self._sources.status(), refresh_s=self._refresh_s)
        return Response.of(
            200, html.encode(), content_type=b"text/html; charset=utf-8", headers=_PAGE_HEADERS
        )

    async def _status(self, request: Request) -> Response:
        if not self._is_operator(request):
            return _ask_for_token()
        return _json(200, await self._sources.status())

    async def _metrics(self, request: Request) -> Response:
        if not self._metrics_public and not self._is_operator(request):
            return _ask_for_token()
        return Response.of(200, self._sources.metrics(), content_type=METRICS_TYPE)

    async def _health(self, request: Request) -> Response:
        return self._sources.health(request) or _error(404, "no such page")

    def _is_operator(self, request: Request) -> bool:
        return is_operator(self._tokens, request.headers, request.peer_address)


def failure() -> Response:
    """The answer after a bug of ours."""
    return _error(500, "internal error; the log has the traceback")


def _json(code: int, body: object, headers: bytes = b"") -> Response:
    return Response.of(code, msgspec.json.encode(body), content_type=_JSON, headers=headers)


def _error(code: int, message: str, headers: bytes = b"") -> Response:
    content: dict[str, Any] = {"code": code, "error": message}
    return _json(code, content, headers)


def _not_allowed(allowed: bytes) -> Response:
    return _error(405, "method not allowed here", b"Allow: " + allowed + b"\r\n")


def _unauthorized(message: str) -> Response:
    return _error(401, message, b'WWW-Authenticate: Bearer realm="waystation broadcasts"\r\n')


def _ask_for_token() -> Response:
    return _error(
        401,
        "this page is for its own machine, or for who has the operator's token"
        " (keys/operator_token): as bearer token, or as password of any user",
        b'WWW-Authenticate: Basic realm="waystation console"\r\n',
    )
