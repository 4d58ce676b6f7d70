"""Builds the messages of a client, numbered from 1 over all streams of a session."""

from waystation.presence.wire import party_presence_pb2 as pb
from waystation.presence.wire.party_presence_pb2 import ClientMessage

from .model import SessionOptions

FLAG_RESUME_ONLY = 1
FLAG_STANDBY = 2
FLAG_WANT_UPDATES = 4
FLAG_NO_DELIVERY = 8


class OutgoingMessages:
    def __init__(self, options: SessionOptions) -> None:
        self._options = options
        self._last_id = 0

    def message(self, kind: int, **fields: object) -> ClientMessage:
        message = ClientMessage(**fields)  # pyright: ignore[reportArgumentType]
        message.message_type = kind  # pyright: ignore[reportAttributeAccessIssue]
        self._last_id += 1
        message.message_id = self._last_id
        return message

    def join(self, resume_token: bytes, *, standby: bool, only_resume: bool) -> ClientMessage:
        options = self._options
        return self.message(
            pb.JOIN,
            session_id=options.session_id,
            client_id=options.client_id,
            party_id=options.party_id,
            session_ttl_ms=options.session_ttl_ms,  # also says that we know all types
            resume_token=resume_token,
            flags=FLAG_WANT_UPDATES * options.want_updates
            | FLAG_NO_DELIVERY * options.no_delivery
            | FLAG_STANDBY * standby
            | FLAG_RESUME_ONLY * only_resume,
        )
