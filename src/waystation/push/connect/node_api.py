"""Node API on the relay port: HTTP requests of other nodes for this node's user agents.

    PUT    /push/{uaid}                     deliver: 200 taken, 404 not connected here, 503 busy
    PUT    /notif/{uaid}                    check storage: 200 now, 202 later, 404 not connected
    DELETE /notif/{uaid}/{connected_at}     close exactly that connection: 200
    GET    /link                            upgrade to link frames (Waystation nodes only)

The prefix `/w/{K}` names worker K of this node. Any worker accepts the request and passes it on. An
unknown or dead K answers 404, so that the sender clears the route.

If the sender hung up before its answer, it has stored the notification, and the push is refused.
"""

from collections.abc import Callable, Coroutine
from typing import Any, Final

from waystation.base.clock import Clock
from waystation.base.ids import parse_uuid
from waystation.base.numbers import parse_number
from waystation.net.http1.message import Request, Response
from waystation.net.loop import Port
from waystation.push.errors import BadBodyError
from waystation.push.link_handshake import PATH_END, TOKEN, accept_link
from waystation.push.model import SortKey, Uaid
from waystation.push.wire.relay import BODY_BYTES_MAX, TIME_MS_MAX, Answer, ServedNode, decode_push

_TEXT: Final = b"text/plain"
_WORKER_INDEX_MAX: Final = 9_999


class NodeApi:
    """Handler and body limit for the HTTP server of the relay port."""

    def __init__(
        self,
        *,
        node: ServedNode,
        worker: Callable[[int], ServedNode | None],
        sort_key_of: Callable[[str], SortKey],
        health: Callable[[Request], Response | None],
        secret: bytes,
        links: Port,
        clock: Clock,
        name_of: Callable[[str], str] = lambda _: "",
    ) -> None:
        self._node = node
        self._worker = worker
        self._sort_key_of = sort_key_of
        self._health = health
        self._secret = secret
        self._links = links
        self._clock = clock
        self._name_of = name_of  # of worker K; of this worker for an empty K

    def __call__(self, request: Request) -> Response | Coroutine[Any, Any, Response]:
        parts = request.path.decode("latin-1").split("/")[1:]
        node: ServedNode | None = self._node
        index = ""
        if parts[0] == "w" and len(parts) > 2:
            index = parts[1]
            node = self._named(index)
            parts = parts[2:]
        if request.upgrade == TOKEN and parts == [PATH_END.lstrip("/")]:
            if node is None:
                return _absent()
            return accept_link(
                request, self._links, node, self._secret, self._clock, name=self._name_of(index)
            )
        match parts, request.method:
            case ["push", uaid], b"PUT":
                return self._push(node, uaid, request)
            case ["notif", uaid], b"PUT":
                return self._check_stored(node, uaid)
            case ["notif", uaid, connected_at], b"DELETE":
                return self._displace(node, uaid, connected_at)
            case ["push", _] | ["notif", _] | ["notif", _, _], _:
                return Response.of(405)
            case _:
                return self._health(request) or Response.of(404)

    @staticmethod
    def body_limit(request: Request) -> int:
        return BODY_BYTES_MAX if request.method == b"PUT" else 0

    def _named(self, index: str) -> ServedNode | None:
        number = parse_number(index, _WORKER_INDEX_MAX)
        return None if number is None else self._worker(number)

    async def _push(self, node: ServedNode | None, uaid_text: str, request: Request) -> Response:
        uaid = parse_uuid(uaid_text)
        if node is None or uaid is None:
            return _absent()
        if request.oversize:
            return Response.of(413)
        try:
            notifications = decode_push(request.body, self._sort_key_of)
        except BadBodyError as error:
            return Response.of(400, str(error).encode(), content_type=_TEXT)
        if request.abandoned:
            node.push_abandoned(Uaid(uaid), None)
            return _response(Answer.BUSY)
        answer = Answer.TAKEN
        for notification in notifications:
            answer = await node.push(Uaid(uaid), notification)
            if answer is not Answer.TAKEN:
                break
            if request.abandoned:
                node.push_abandoned(Uaid(uaid), notification)
        return _response(answer)

    async def _check_stored(self, node: ServedNode | None, uaid_text: str) -> Response:
        uaid = parse_uuid(uaid_text)
        if node is None or uaid is None:
            return _absent()
        return _response(await node.check_stored(Uaid(uaid)))

    async def _displace(
        self, node: ServedNode | None, uaid_text: str, connected_at_text: str
    ) -> Response:
        uaid = parse_uuid(uaid_text)
        connected_at_ms = parse_number(connected_at_text, TIME_MS_MAX)
        if node is None or uaid is None or connected_at_ms is None:
            return _absent()
        answer = await node.displace(Uaid(uaid), connected_at_ms)
        # 200 also if the connection does not exist: the sender only wants it closed.
        return Response.of(200) if answer is Answer.ABSENT else _response(answer)


def _absent() -> Response:
    return Response.of(404, b"Client not available", content_type=_TEXT)


def _response(answer: Answer) -> Response:
    """UNREACHABLE is 404 like ABSENT: a dead worker has no connections."""
    match answer:
        case Answer.TAKEN | Answer.FLAGGED:
            return Response.of(answer.value)
        case Answer.BUSY | Answer.UNEXPECTED:
            return Response.of(Answer.BUSY.value)
        case Answer.ABSENT | Answer.UNREACHABLE:
            return _absent()
