"""Maps each status code to its effect: whether the stream goes on, and how the call ends.

A code that ends a stream is sent as an ERROR message; then the call ends with the gRPC status of
this table and the name of the code as its message.
"""

from typing import Final

from waystation.net.http2.port import GrpcStatus
from waystation.presence.model import Status

# 32 to 63: the request failed, and the stream goes on.
SOFT: Final = range(32, 64)

ENDINGS: Final[dict[Status, GrpcStatus]] = {
    Status.INTERNAL_ERROR: GrpcStatus.INTERNAL,
    Status.CLIENT_TIMEOUT: GrpcStatus.DEADLINE_EXCEEDED,
    Status.ACK_TIMEOUT: GrpcStatus.DEADLINE_EXCEEDED,
    Status.SESSION_ID_IN_USE: GrpcStatus.ALREADY_EXISTS,
    Status.REMOVED_BY_ADMIN: GrpcStatus.ABORTED,
    Status.PARTY_CLOSED: GrpcStatus.ABORTED,
    Status.REPLACED_BY_NEWER_SESSION: GrpcStatus.ABORTED,
    Status.NODE_LOST: GrpcStatus.ABORTED,
    Status.TOKEN_EXPIRED: GrpcStatus.UNAUTHENTICATED,
    Status.SLOW_CONSUMER: GrpcStatus.RESOURCE_EXHAUSTED,
    Status.NOT_SUPPORTED: GrpcStatus.UNIMPLEMENTED,  # ends a stream only as answer to a JOIN
    Status.RATE_LIMITED: GrpcStatus.RESOURCE_EXHAUSTED,  # as above
    Status.JOIN_REQUIRED: GrpcStatus.FAILED_PRECONDITION,
    Status.INVALID_IDENTIFIER: GrpcStatus.INVALID_ARGUMENT,
    Status.UNAUTHENTICATED: GrpcStatus.UNAUTHENTICATED,
    Status.PERMISSION_DENIED: GrpcStatus.PERMISSION_DENIED,
    Status.PARTY_FULL: GrpcStatus.RESOURCE_EXHAUSTED,
    Status.SESSION_LIMIT: GrpcStatus.RESOURCE_EXHAUSTED,
    Status.RESUME_REJECTED: GrpcStatus.PERMISSION_DENIED,
    Status.SESSION_NOT_FOUND: GrpcStatus.NOT_FOUND,
    Status.TAKEN_OVER: GrpcStatus.ABORTED,
    Status.PROTOCOL_VIOLATION: GrpcStatus.FAILED_PRECONDITION,
    Status.MALFORMED_MESSAGE: GrpcStatus.INVALID_ARGUMENT,
    Status.DRAINING: GrpcStatus.UNAVAILABLE,
    Status.HANDOFF_REQUIRED: GrpcStatus.UNAVAILABLE,
    Status.OVERLOADED: GrpcStatus.UNAVAILABLE,
    Status.STORE_UNAVAILABLE: GrpcStatus.UNAVAILABLE,
    Status.SESSION_MOVED: GrpcStatus.UNAVAILABLE,
    Status.WRITE_STALLED: GrpcStatus.RESOURCE_EXHAUSTED,
    Status.REAUTHENTICATE: GrpcStatus.UNAUTHENTICATED,
}


def ending(status: Status) -> GrpcStatus:
    return ENDINGS.get(status, GrpcStatus.ABORTED)
