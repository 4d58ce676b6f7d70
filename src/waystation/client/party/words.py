"""The messages that a client says, numbered from 1 over all streams of a session."""

from waystation.presence.wire import party_presence_pb2 as pb
from waystation.presence.wire.party_presence_pb2 import ClientMessage

from .model import Wishes

FLAG_RESUME_ONLY = 1
FLAG_STANDBY = 2
FLAG_WANT_UPDATES = 4
FLAG_NO_DELIVERY = 8


class Words:
    def __init__(self, wishes: Wishes) -> None:
        self._wishes = wishes
        self._last_id = 0

    def message(self, kind: int, **fields: object) -> ClientMessage:
        message = ClientMessage(**fields)  # pyright: ignore[reportArgumentType]
        message.message_type = kind  # pyright: ignore[reportAttributeAccessIssue]
        self._last_id += 1
        message.message_id = self._last_id
        return message

    def join(self, resume_token: bytes, *, standby: bool, only_resume: bool) -> ClientMessage:
        wishes = self._wishes
        return self.message(
            pb.JOIN,
            session_id=wishes.session_id,
            client_id=wishes.client_id,
            party_id=wishes.party_id,
            session_ttl_ms=wishes.session_ttl_ms,  # also what tells that we know the whole protocol
            resume_token=resume_token,
            flags=FLAG_WANT_UPDATES * wishes.want_updates
            | FLAG_NO_DELIVERY * wishes.no_delivery
            | FLAG_STANDBY * standby
            | FLAG_RESUME_ONLY * only_resume,
        )
