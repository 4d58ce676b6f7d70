"""The console's HTTP: broadcasts for publishers, a page for people, health and metrics.

Publishing (webpush §2.9): `PUT /v1/broadcasts/{broadcaster}/{channel}` with the version as raw
body, a bearer token per broadcaster; `GET /v1/broadcasts` with the reader's token.
"""

import re
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from waystation.base.errors import UnavailableError

from .access import is_known, is_operator, may_publish, may_read_broadcasts
from .model import Sources, Tokens
from .pages import render_status
from .settings import Console

VERSION_BYTES_MAX = 200
BROADCASTER = re.compile(r"[A-Za-z0-9_-]{1,64}")
CHANNEL = re.compile(r"[A-Za-z0-9_-]{1,128}")
VERSION = re.compile(r"[\x20-\x7e]+")
CANCEL = "____NOP____"  # the old service cancelled a pending update with it; ours has none pending
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def build_console(
    settings: Console, tokens: Tokens, sources: Sources, *, metrics_public: bool = False
) -> Starlette:
    """The application; no state of its own."""

    async def publish(request: Request) -> Response:
        broadcaster: str = request.path_params["broadcaster"]
        channel: str = request.path_params["channel"]
        if not may_publish(tokens, request.headers, broadcaster):
            if is_known(tokens, request.headers):
                return _error(403, f"this token may not publish for {broadcaster!r}")
            return _unauthorized(
                "a publisher's bearer token is needed (keys/broadcast_tokens.toml)"
            )
        if not BROADCASTER.fullmatch(broadcaster):
            return _error(400, "a broadcaster is 1 to 64 characters of A-Z a-z 0-9 _ -")
        if not CHANNEL.fullmatch(channel):
            return _error(400, "a channel is 1 to 128 characters of A-Z a-z 0-9 _ -")
        body = await _limited_body(request, VERSION_BYTES_MAX)
        if body is None:
            return _error(413, f"a version is at most {VERSION_BYTES_MAX} bytes")
        version = body.decode("ascii", "replace")
        if not VERSION.fullmatch(version):
            return _error(400, "a version is 1 to 200 printable ASCII characters")
        if version == CANCEL:
            return JSONResponse({"code": 200})
        try:
            new = await sources.store.publish_broadcast(f"{broadcaster}/{channel}", version)
        except UnavailableError:
            return _error(503, "the store does not answer; nothing was published")
        code = 201 if new else 200
        return JSONResponse({"code": code}, status_code=code)

    async def read(request: Request) -> Response:
        if not may_read_broadcasts(tokens, request.headers):
            if is_known(tokens, request.headers):
                return _error(403, "this token may not read broadcasts")
            return _unauthorized("the reader's bearer token is needed (keys/broadcast_tokens.toml)")
        try:
            broadcasts = await sources.store.get_broadcasts()
        except UnavailableError:
            return _error(503, "the store does not answer")
        return JSONResponse({"code": 200, "broadcasts": dict(broadcasts)})

    async def page(request: Request) -> Response:
        if not _operator(tokens, request):
            return _ask_for_token()
        return HTMLResponse(
            render_status(await sources.status(), refresh_s=settings.refresh_s),
            headers={
                "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
                "Cache-Control": "no-store",
                "X-Frame-Options": "DENY",
            },
        )

    async def status(request: Request) -> Response:
        if not _operator(tokens, request):
            return _ask_for_token()
        body = msgspec.json.encode(await sources.status())
        return Response(body, media_type="application/json")

    async def metrics(request: Request) -> Response:
        if not metrics_public and not _operator(tokens, request):
            return _ask_for_token()
        return Response(await sources.metrics(), media_type=METRICS_TYPE)

    async def health(request: Request) -> Response:
        answer = await sources.health(request.method, request.url.path)
        if answer is None:
            return _error(404, "no such page")
        return Response(
            answer.body,
            status_code=answer.status,
            headers={"Content-Type": answer.content_type} if answer.content_type else None,
        )

    return Starlette(
        routes=[
            Route("/", page, methods=["GET"]),
            Route("/v1/status", status, methods=["GET"]),
            Route("/v1/broadcasts", read, methods=["GET"]),
            Route("/v1/broadcasts/{broadcaster}/{channel}", publish, methods=["PUT"]),
            Route("/metrics", metrics, methods=["GET"]),
            Route("/{path:path}", health, methods=["GET"]),
        ]
    )


def _operator(tokens: Tokens, request: Request) -> bool:
    peer = request.client.host if request.client else ""
    return is_operator(tokens, request.headers, peer)


async def _limited_body(request: Request, limit_bytes: int) -> bytes | None:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > limit_bytes:
            return None
    return bytes(body)


def _error(code: int, message: str, **headers: str) -> Response:
    content: dict[str, Any] = {"code": code, "error": message}
    return JSONResponse(content, status_code=code, headers=headers or None)


def _unauthorized(message: str) -> Response:
    return _error(401, message, **{"WWW-Authenticate": 'Bearer realm="waystation broadcasts"'})


def _ask_for_token() -> Response:
    return _error(
        401,
        "this page is for its own machine, or for who has the operator's token"
        " (keys/operator_token): as bearer token, or as password of any user",
        **{"WWW-Authenticate": 'Basic realm="waystation console"'},
    )
