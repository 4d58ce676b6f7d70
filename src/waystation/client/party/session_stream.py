"""State of one stream of a session: its role and the messages not answered yet. No I/O.

Rule 1: PING is sent on a stream after `ping_s` without another message.
Rule 2: a stream is dead when a message was not answered within `answer_s`, even if its transport
        is still open.
"""

import enum

from waystation.presence.wire.party_presence_pb2 import ACK, ClientMessage


class Role(enum.Enum):
    PRIMARY = enum.auto()
    STANDBY = enum.auto()
    SUCCESSOR = enum.auto()  # opened for a hand-off; becomes the primary when its JOIN is answered
    FORMER = enum.auto()  # replaced; still read until it ends


class SessionStream:
    def __init__(self, number: int, endpoint: str, role: Role, now: float) -> None:
        self.number = number
        self.endpoint = endpoint
        self.role = role
        self.node_id = ""
        self.up = False  # JOIN (or PROMOTE) was acknowledged
        self.ticket = b""  # of the hand-off for which it was opened
        self.unanswered: dict[int, float] = {}  # message id -> when it was sent
        self.join_id = 0
        self.said_at = now

    def said(self, message: ClientMessage, now: float) -> None:
        self.said_at = now
        if message.message_type != ACK:
            self.unanswered[message.message_id] = now

    def answered(self, ids: list[int]) -> None:
        for message_id in ids:
            self.unanswered.pop(message_id, None)

    def dead_at(self, answer_s: float) -> float | None:
        first = next(iter(self.unanswered.values()), None)
        return None if first is None else first + answer_s

    def ping_at(self, ping_s: float) -> float | None:
        return self.said_at + ping_s if self.up and self.role is not Role.FORMER else None
