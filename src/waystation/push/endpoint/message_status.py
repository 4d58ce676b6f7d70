"""Status of a message, for the app server that sent it.

`GET /m/{message_id}/status`, signed with the VAPID key of the POST. The id alone is not accepted:
every proxy on the way has seen it in a `Location`.
"""

import hmac

import msgspec

from waystation.base.clock import Clock
from waystation.net.http1.message import Request, Response
from waystation.push.errors import NoStatusError, UnauthorizedError, VapidError
from waystation.push.model import MessageId, Milestone
from waystation.push.store import PushStore
from waystation.push.token import MessageIds
from waystation.push.vapid import Vapid


class Step(msgspec.Struct, frozen=True):
    state: str
    at_ms: int


class StatusBody(msgspec.Struct, frozen=True):
    state: str  # the last one
    final: bool
    milestones: list[Step]


class MessageStatuses:
    def __init__(self, store: PushStore, ids: MessageIds, vapid: Vapid, clock: Clock) -> None:
        self._store = store
        self._ids = ids
        self._vapid = vapid
        self._clock = clock

    async def show(self, request: Request, message_id: bytes) -> Response:
        self._ids.parse(message_id)
        authorization = request.headers.get(b"authorization")
        if authorization is None:
            raise UnauthorizedError("Sign this request with VAPID, with the key of the message")
        now_ms = self._clock.now_ms()
        sender = self._vapid.verify(
            authorization, request.headers.get(b"crypto-key"), now_ms / 1000
        )
        text = message_id.rstrip(b"=").decode("ascii")
        status = await self._store.get_status(
            MessageId(text + "=" * (-len(text) % 4)), now_ms=now_ms
        )
        if status is None:
            raise NoStatusError("There is no status of that message")
        if not hmac.compare_digest(status.sender, sender.key_hash):
            raise VapidError("VAPID public key mismatch")
        steps = sorted(
            (Step(state, at_ms) for state, at_ms in status.milestones.items()),
            key=lambda step: (step.at_ms, _ORDER[step.state]),
        )
        last = next((s for s in steps if Milestone(s.state).terminal), steps[-1])
        body = StatusBody(last.state, Milestone(last.state).terminal, steps)
        return Response.of(
            200,
            msgspec.json.encode(body),
            content_type=b"application/json",
            headers=b"Cache-Control: no-store\r\n",
        )


_ORDER = {milestone.value: position for position, milestone in enumerate(Milestone)}
