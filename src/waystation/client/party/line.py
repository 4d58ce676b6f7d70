"""One stream of a session as the client sees it: what was asked on it and not answered. No I/O.

Rule 1: a line that has said nothing for `ping_s` says PING.
Rule 2: a question that is not answered within `answer_s` means that the line is dead, whatever the
        transport believes.
"""

import enum

from waystation.presence.wire.party_presence_pb2 import ACK, ClientMessage


class Role(enum.Enum):
    PRIMARY = enum.auto()
    STANDBY = enum.auto()
    SUCCESSOR = enum.auto()  # where a hand-off leads: becomes the primary when it is answered
    FORMER = enum.auto()  # still read until it ends, but no longer ours


class Line:
    def __init__(self, number: int, endpoint: str, role: Role, now: float) -> None:
        self.number = number
        self.endpoint = endpoint
        self.role = role
        self.node_id = ""
        self.up = False  # JOIN (or PROMOTE) was acknowledged
        self.ticket = b""  # of the hand-off that leads here
        self.questions: dict[int, float] = {}  # message id -> when it was asked
        self.join_id = 0
        self.said_at = now

    def said(self, message: ClientMessage, now: float) -> None:
        self.said_at = now
        if message.message_type != ACK:
            self.questions[message.message_id] = now

    def answered(self, ids: list[int]) -> None:
        for message_id in ids:
            self.questions.pop(message_id, None)

    def dead_at(self, answer_s: float) -> float | None:
        first = next(iter(self.questions.values()), None)
        return None if first is None else first + answer_s

    def ping_at(self, ping_s: float) -> float | None:
        return self.said_at + ping_s if self.up and self.role is not Role.FORMER else None
