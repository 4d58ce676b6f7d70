"""How the client reacts to a status code; the ranges of the protocol decide for unknown codes."""

import enum

from waystation.presence.wire import party_presence_pb2 as pb

# The status code that stands for a gRPC status without an ERROR message.
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


class ErrorAction(enum.Enum):
    GO_ON = enum.auto()  # the stream is fine
    RESUME = enum.auto()  # open another stream and go on there
    JOIN_ANEW = enum.auto()  # the session is over; a new one may begin
    DROP_TOKEN = enum.auto()  # the resume token was refused: join without it
    NEW_JWT = enum.auto()
    GIVE_UP = enum.auto()


def action_for_status(code: int, retry_after_ms: int = 0) -> ErrorAction:
    """The reaction to the code of an ERROR message."""
    if code in _OVER:
        return ErrorAction.GIVE_UP
    if code in _EXPIRED:
        return ErrorAction.JOIN_ANEW
    if code == pb.RESUME_REJECTED:
        return ErrorAction.DROP_TOKEN
    if code in {pb.UNAUTHENTICATED, pb.REAUTHENTICATE}:
        return ErrorAction.NEW_JWT
    if code == pb.SESSION_ID_IN_USE:
        # The broker may not have noticed yet that our earlier transport is dead.
        return ErrorAction.RESUME if retry_after_ms else ErrorAction.GIVE_UP
    if code in {pb.INTERNAL_ERROR, pb.SLOW_CONSUMER} or code >= 96:
        return ErrorAction.RESUME
    if code >= 64:
        return ErrorAction.GIVE_UP
    return ErrorAction.GO_ON


def action_for_grpc_status(status: int) -> tuple[ErrorAction, int]:
    """The reaction to a call that ended without an ERROR message, and the nearest code."""
    code = _BY_GRPC.get(status)
    if code is None:
        return ErrorAction.RESUME, pb.INTERNAL_ERROR
    return ErrorAction.NEW_JWT if code == pb.UNAUTHENTICATED else ErrorAction.GIVE_UP, code


def code_name(code: int) -> str:
    value = pb.StatusCode.DESCRIPTOR.values_by_number.get(code)
    return f"status {code}" if value is None else value.name
