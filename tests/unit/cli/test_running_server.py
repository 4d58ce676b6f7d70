"""Where commands find the ports of the server that runs on this machine."""

import pytest

from waystation.app.server_info import ListenAddress, ServerInfo
from waystation.cli.running_server import endpoint_of


def serving(host: str) -> ServerInfo:
    row = ListenAddress("parties (gRPC)", f"grpc://{host}:50051/", "presence.port")
    return ServerInfo(pid=1, version="1", roles=("presence",), workers=1, listening=(row,))


@pytest.mark.parametrize(
    "host, endpoint",
    [
        ("127.0.0.1", "127.0.0.1:50051"),
        ("192.0.2.7", "192.0.2.7:50051"),
        ("[::1]", "[::1]:50051"),
        ("broker.example.org", "broker.example.org:50051"),
        ("0.0.0.0", "127.0.0.1:50051"),
        ("[::]", "[::1]:50051"),
        ("", "127.0.0.1:50051"),
    ],
)
def test_a_port_is_looked_for_where_the_server_listens(host: str, endpoint: str) -> None:
    assert endpoint_of(serving(host), "presence.port") == endpoint


def test_a_port_that_is_not_served_is_nowhere() -> None:
    assert endpoint_of(serving("127.0.0.1"), "presence.peer_port") is None
