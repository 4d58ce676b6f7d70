"""What to do about a status: the ranges of the protocol give advice for codes nobody knows yet."""

import enum

from waystation.presence.wire import party_presence_pb2 as pb

# What a gRPC status means that comes without an ERROR message.
_BY_GRPC = {
    3: pb.MALFORMED_MESSAGE,
    5: pb.SESSION_NOT_FOUND,
    7: pb.PERMISSION_DENIED,
    9: pb.PROTOCOL_VIOLATION,
    12: pb.NOT_SUPPORTED,
    16: pb.UNAUTHENTICATED,
}
_OVER = {pb.REMOVED_BY_ADMIN, pb.PARTY_CLOSED, pb.REPLACED_BY_NEWER_SESSION}
_EXPIRED = {pb.CLIENT_TIMEOUT, pb.ACK_TIMEOUT}


class Advice(enum.Enum):
    GO_ON = enum.auto()  # the stream is fine
    RESUME = enum.auto()  # open another stream and go on there
    JOIN_ANEW = enum.auto()  # the session is over, and may begin again
    DROP_TOKEN = enum.auto()  # the resume token is no good: try without
    NEW_JWT = enum.auto()
    GIVE_UP = enum.auto()


def advise(code: int, retry_after_ms: int = 0) -> Advice:
    """For the code of an ERROR message."""
    if code in _OVER:
        return Advice.GIVE_UP
    if code in _EXPIRED:
        return Advice.JOIN_ANEW
    if code == pb.RESUME_REJECTED:
        return Advice.DROP_TOKEN
    if code in {pb.UNAUTHENTICATED, pb.REAUTHENTICATE}:
        return Advice.NEW_JWT
    if code == pb.SESSION_ID_IN_USE:
        # A dead transport of ours may not have been noticed yet.
        return Advice.RESUME if retry_after_ms else Advice.GIVE_UP
    if code in {pb.INTERNAL_ERROR, pb.SLOW_CONSUMER} or code >= 96:
        return Advice.RESUME
    if code >= 64:
        return Advice.GIVE_UP
    return Advice.GO_ON


def advise_grpc(status: int) -> tuple[Advice, int]:
    """For a call that ended without an ERROR message; with the code that comes nearest."""
    code = _BY_GRPC.get(status)
    if code is None:
        return Advice.RESUME, pb.INTERNAL_ERROR
    return Advice.NEW_JWT if code == pb.UNAUTHENTICATED else Advice.GIVE_UP, code


def code_name(code: int) -> str:
    value = pb.StatusCode.DESCRIPTOR.values_by_number.get(code)
    return f"status {code}" if value is None else value.name
