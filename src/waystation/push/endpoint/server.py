"""HTTP server of the endpoint node: routes paths to handlers, forms errors and CORS headers.

Rule 1: a known path with another method is 405, an unknown path is 404 with an empty body.
Rule 2: CORS allows every origin: a subscription is protected by its token and its VAPID key.
Rule 3: at most `max_requests` run at a time; one more is answered 503.
"""

from collections.abc import Callable, Coroutine
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from waystation.base.errors import BusyError, WaystationError
from waystation.base.limits import CountLimit
from waystation.net.http1.message import Request, Response
from waystation.push.endpoint import matrix as matrix_gateway
from waystation.push.endpoint import simplepush as simplepush_intake
from waystation.push.endpoint.intake import Intake
from waystation.push.endpoint.matrix import MatrixGateway
from waystation.push.endpoint.message_status import MessageStatuses
from waystation.push.endpoint.registration import Registration, read_path
from waystation.push.endpoint.simplepush import SimplePushIntake
from waystation.push.settings import Endpoint
from waystation.push.wire.error_forms import error_body, error_headers, form_of, message_of

_PERCENT: Final = ord("%")  # a number: `find` with one takes a tenth of the time
_JSON: Final = b"application/json"
_METHODS: Final = b"DELETE, GET, POST, PUT"
_EXPOSED: Final = b"location, www-authenticate, ttl, retry-after"
_DISCOVERY: Final = b'{"unifiedpush":{"version":1}}'  # https://unifiedpush.org, push server

HealthRoutes = Callable[[Request], Response | None]
PendingResponse = Coroutine[Any, Any, Response]


def no_health(_request: Request) -> Response | None:
    return None


class EndpointServer:
    """`handle`, `body_limit` and `failure` are the callbacks of an `HttpServer`."""

    def __init__(
        self,
        settings: Endpoint,
        *,
        intake: Intake,
        status: MessageStatuses,
        simplepush: SimplePushIntake | None = None,
        matrix: MatrixGateway | None = None,
        registration: Registration | None = None,
        health: HealthRoutes = no_health,
        on_bug: Callable[[BaseException], None] | None = None,
    ) -> None:
        self._intake = intake
        self._status = status
        self._simplepush = simplepush
        self._matrix = matrix
        self._registration = registration
        self._health = health
        self._on_bug = on_bug
        self._more_info = settings.more_info_url
        self._body_bytes_max = settings.max_data_bytes
        self._under_way = CountLimit("endpoint.max_requests", settings.max_requests)
        self.requests = 0
        self.failures: dict[str, int] = {}  # by the error's label

    @property
    def under_way(self) -> int:
        """Number of running requests."""
        return self._under_way.used

    def body_limit(self, request: Request) -> int:
        path = request.path
        if path.startswith(b"/wpush/"):
            return self._body_bytes_max
        if path == matrix_gateway.PATH:
            return matrix_gateway.BODY_BYTES_MAX
        if path.startswith((b"/spush/", b"/update/", b"/push/")):
            return simplepush_intake.BODY_BYTES_MAX
        if path.startswith(b"/v1/"):
            return self._body_bytes_max
        return 0

    def handle(self, request: Request) -> Response | PendingResponse:
        self.requests += 1
        if _PERCENT in request.path:
            request.path = unquote_to_bytes(request.path)
        if request.method == b"OPTIONS":
            return self._options(request)
        serving = self._route(request)
        if serving is not None:
            return self._serve(request, serving)
        return self._with_cors(request, self._health(request) or self._refuse(request))

    async def _serve(self, request: Request, pending: PendingResponse) -> Response:
        if not self._under_way.enter():
            pending.close()
            return self._with_cors(
                request, self.error_response(BusyError(retry_after_s=1.0), request)
            )
        try:
            response = await pending
        except WaystationError as error:
            response = self.error_response(error, request)
        finally:
            self._under_way.leave()
        return self._with_cors(request, response)

    def _route(self, request: Request) -> PendingResponse | None:
        method, path = request.method, request.path
        if path.startswith(b"/wpush/"):
            if method == b"POST":
                return self._intake.post(request)
        elif path.startswith(b"/m/"):
            message_id, slash, tail = path[3:].partition(b"/")
            if method == b"DELETE" and not slash:
                return self._intake.withdraw(message_id)
            if method == b"GET" and tail == b"status":
                return self._status.show(request, message_id)
        elif path == matrix_gateway.PATH and self._matrix is not None:
            if method == b"POST":
                return self._matrix.notify(request)
        elif path.startswith(b"/v1/") and self._registration is not None:
            known = read_path(path)
            if known is not None and method in known.methods:
                return self._registration.serve(request, known)
        elif method == b"PUT" and self._simplepush is not None:
            token = _simplepush_token(path)
            if token is not None:
                return self._simplepush.put(request, token)
        return None

    def _refuse(self, request: Request) -> Response:
        """Discovery documents, 405 for a known path with another method, 404."""
        if request.method in (b"GET", b"HEAD"):
            if request.path == matrix_gateway.PATH and self._matrix is not None:
                return self._matrix.discover()
            if request.path.startswith(b"/wpush/"):
                return Response.of(200, _DISCOVERY, content_type=_JSON)
        allowed = self._allowed(request.path)
        if allowed is None:
            return Response.of(404)
        body = error_body(405, None, "Method not allowed here", self._more_info)
        return Response.of(405, body, content_type=_JSON, headers=b"Allow: " + allowed + b"\r\n")

    def _allowed(self, path: bytes) -> bytes | None:
        """Methods of a known path; None for an unknown one."""
        if path.startswith(b"/wpush/"):
            return b"GET, POST, OPTIONS"
        if path.startswith(b"/m/"):
            _, slash, tail = path[3:].partition(b"/")
            if not slash:
                return b"DELETE, OPTIONS"
            return b"GET, OPTIONS" if tail == b"status" else None
        if path == matrix_gateway.PATH and self._matrix is not None:
            return b"GET, POST, OPTIONS"
        if path.startswith(b"/v1/") and self._registration is not None:
            known = read_path(path)
            return None if known is None else b", ".join((*known.methods, b"OPTIONS"))
        if self._simplepush is not None and _simplepush_token(path) is not None:
            return b"PUT, OPTIONS"
        return None

    def _options(self, request: Request) -> Response:
        if b"origin" not in request.headers:
            allowed = self._allowed(request.path)
            if allowed is None:
                return Response.of(404)
            return Response.of(204, headers=b"Allow: " + allowed + b"\r\n")
        wanted = request.headers.get(b"access-control-request-headers", b"")
        lines = b"Access-Control-Allow-Methods: " + _METHODS + b"\r\n"
        if wanted:
            lines += b"Access-Control-Allow-Headers: " + wanted + b"\r\n"
        lines += b"Access-Control-Max-Age: 3600\r\n"
        return self._with_cors(request, Response.of(204, headers=lines))

    def _with_cors(self, request: Request, response: Response) -> Response:
        origin = request.headers.get(b"origin")
        if origin:
            response.head += (
                b"Access-Control-Allow-Origin: %b\r\nAccess-Control-Expose-Headers: %b\r\n"
                b"Vary: Origin\r\n" % (origin, _EXPOSED)
            )
        return response

    def error_response(self, error: BaseException, request: Request) -> Response:
        form = form_of(type(error))
        status = form.status
        label = error.label if isinstance(error, WaystationError) else "bug"
        self.failures[label] = self.failures.get(label, 0) + 1
        if (
            self._simplepush is not None
            and request.method == b"PUT"
            and _simplepush_token(request.path) is not None
            and isinstance(error, WaystationError)
        ):
            status = self._simplepush.status_of(error, status)
        return Response.of(
            status,
            error_body(status, form.errno, message_of(error), self._more_info),
            content_type=_JSON,
            headers=error_headers(status, error),
        )

    def failure(self, request: Request, error: BaseException) -> Response:
        """An unexpected exception: counted, logged, and answered 500."""
        if self._on_bug is not None and not isinstance(error, WaystationError):
            self._on_bug(error)
        return self._with_cors(request, self.error_response(error, request))


def _simplepush_token(path: bytes) -> bytes | None:
    for prefix in (b"/spush/v1/", b"/update/", b"/push/"):
        if path.startswith(prefix):
            token = path[len(prefix) :]
            return token if token and b"/" not in token else None
    return None
