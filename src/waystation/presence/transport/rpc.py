"""Helpers of the gRPC services: paths, methods with protobuf messages, session keys."""

from collections.abc import Callable, Collection
from typing import Any, Final, NoReturn

from waystation.net.http2.methods import GrpcError, Method
from waystation.net.http2.port import GrpcStatus
from waystation.presence.model import ClientId, PartyId, SessionId, SessionKey

CLIENT_SERVICE: Final = "ClientMessagingEndpoint"
RPC_PATH: Final = f"/{CLIENT_SERVICE}/beginStream"


def paths(aliases: Collection[str]) -> frozenset[str]:
    """The paths of `beginStream`: our own and the aliases (`rpc_path_aliases`), each a service
    name such as `my.package.ClientMessagingEndpoint` or a whole path."""
    more = (name if name.startswith("/") else f"/{name}/beginStream" for name in aliases)
    return frozenset((RPC_PATH, *more))


def method(
    run: Callable[[Any, Any], Any],
    request: Any,
    reply: Any,
    *,
    many_in: bool = False,
    many_out: bool = False,
) -> Method:
    """`request` and `reply` are message types of protobuf."""
    return Method(
        run, request.FromString, reply.SerializeToString, many_in=many_in, many_out=many_out
    )


def unauthenticated() -> NoReturn:
    raise GrpcError(GrpcStatus.UNAUTHENTICATED, "UNAUTHENTICATED")


def session_key(key: Any) -> SessionKey:
    """A `SessionKey` from the protobuf message of that name."""
    return SessionKey(PartyId(key.party_id), ClientId(key.client_id), SessionId(key.session_id))
