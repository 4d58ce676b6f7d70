"""The ops port of the queue service: health, metrics and the information page, over plain HTTP."""

import html
from collections.abc import Callable

import msgspec

from waystation.base.http_message import Request, Response

from .health import METRICS_TYPE, StoreProbe
from .version import Build

_JSON = b"application/json"
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Queue server</title>
<meta name="viewport" content="width=device-width, initial-scale=1"></head>
<body><h1>Queue server</h1>
<p>This server carries messages of the SimpleX Messaging Protocol, version {lowest} to {highest}.
It keeps no accounts, reads no messages, and logs neither connections nor commands.</p>
<p>Its address: <code>{address}</code></p>
<p>New queues: {new_queues}. Messages are kept for {days}.</p>
{information}</body></html>
"""


class Page(msgspec.Struct, frozen=True):
    """What the information page tells."""

    address: str
    lowest: int
    highest: int
    new_queues: str
    days: str
    information: str

    def render(self) -> bytes:
        said = "".join(
            f"<p>{html.escape(line)}</p>\n" for line in self.information.splitlines() if line
        )
        return _PAGE.format(
            lowest=self.lowest,
            highest=self.highest,
            address=html.escape(self.address),
            new_queues=html.escape(self.new_queues),
            days=html.escape(self.days),
            information=said,
        ).encode()


class QueueOps:
    """A handler for `HttpServer`."""

    def __init__(
        self,
        *,
        build: Build,
        probe: StoreProbe,
        page: Page,
        metrics: Callable[[], bytes],
        connections: Callable[[], int],
    ) -> None:
        self._build = build
        self._probe = probe
        self._page = page.render()
        self._metrics = metrics
        self._connections = connections

    def __call__(self, request: Request) -> Response:
        if request.method not in (b"GET", b"HEAD"):
            return Response.of(405, headers=b"Allow: GET, HEAD\r\n")
        match request.path:
            case b"/__lbheartbeat__":
                return Response.of(200)
            case b"/__heartbeat__" | b"/health":
                return self._heartbeat()
            case b"/__version__":
                body = msgspec.json.encode(self._build)
                return Response.of(200, body, content_type=_JSON)
            case b"/metrics":
                return Response.of(200, self._metrics(), content_type=METRICS_TYPE.encode())
            case b"/":
                return Response.of(200, self._page, content_type=b"text/html; charset=utf-8")
            case _:
                return Response.of(404)

    def _heartbeat(self) -> Response:
        trouble = self._probe.trouble
        body = {
            "status": "OK" if trouble is None else "ERROR",
            "version": self._build.version,
            "connections": self._connections(),
        }
        status = 200 if trouble is None else 503
        return Response.of(status, msgspec.json.encode(body), content_type=_JSON)
