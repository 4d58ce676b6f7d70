"""Standby streams: a second stream of a session, on another node, ready to become the primary.

Rule 1: a standby is no presence of its own: it is not listed, not announced and gets no party
        messages. Its PING keeps the session alive.
Rule 2: it proves itself like a resume, and changes nothing until it is promoted.
Rule 3: on the node that holds the primary stream there is nothing to gain: NOT_SUPPORTED.
"""

from typing import TYPE_CHECKING

from .conversation import Conversation
from .log import Now
from .model import Status
from .session import Refusal
from .wire.client import ClientInput, Join

if TYPE_CHECKING:
    from .broker import Broker


class Standbys:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker

    async def stand_by(self, conversation: Conversation, join: Join) -> Refusal | None:
        return Refusal(Status.NOT_SUPPORTED, "one node has no standby")

    def take(self, conversation: Conversation, message: ClientInput, now: Now) -> None:
        self._broker.refuse(
            conversation, Refusal(Status.NOT_STANDBY, "not on a standby"), message.message_id
        )

    def forget(self, conversation: Conversation) -> None:
        pass
