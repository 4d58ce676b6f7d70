"""Services of the cluster protocol on a gRPC server: methods with their messages, and who calls."""

from typing import Any, Final

import grpc
from grpc import aio

from .model import ClientId, PartyId, SessionId, SessionKey

# How often each side speaks in one call: once, or as often as it likes.
ONCE_ONCE: Final = grpc.unary_unary_rpc_method_handler
ONCE_MANY: Final = grpc.unary_stream_rpc_method_handler
MANY_ONCE: Final = grpc.stream_unary_rpc_method_handler
MANY_MANY: Final = grpc.stream_stream_rpc_method_handler


def method(behaviour: Any, request: Any, reply: Any, shape: Any = ONCE_ONCE) -> Any:
    """`request` and `reply` are message types of the protocol."""
    return shape(
        behaviour,
        request_deserializer=request.FromString,
        response_serializer=reply.SerializeToString,
    )


def add_service(server: aio.Server, name: str, methods: dict[str, Any]) -> None:
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, methods),))


def authorization(context: Any) -> str | None:
    """What the caller shows: the metadata value of that name."""
    metadata: dict[str, str] = dict(context.invocation_metadata() or ())
    return metadata.get("authorization")


async def unauthenticated(context: Any) -> None:
    """Ends the call: raises."""
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED")


def session_key(key: Any) -> SessionKey:
    """The protocol's message of that name, as we call sessions."""
    return SessionKey(PartyId(key.party_id), ClientId(key.client_id), SessionId(key.session_id))
