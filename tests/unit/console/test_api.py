"""Publishing broadcasts, the page, metrics (webpush §2.9)."""

from collections.abc import Mapping

import msgspec
import pytest

from waystation.base.errors import UnavailableError
from waystation.console.api import ConsoleServer
from waystation.console.model import ServerStatus, Sources, Tokens
from waystation.console.settings import Console
from waystation.net.http1.message import Request, Response

TOKENS = Tokens("op", "rd", {"news": "n", "*": "any"})
AS_PUBLISHER = {"authorization": "Bearer n"}
AS_READER = {"authorization": "Bearer rd"}
LOCAL = {"host": "localhost"}


class FakeStore:
    def __init__(self) -> None:
        self.versions: dict[str, str] = {}
        self.down = False

    async def publish_broadcast(self, broadcast_id: str, version: str) -> bool:
        if self.down:
            raise UnavailableError("down")
        new = broadcast_id not in self.versions
        self.versions[broadcast_id] = version
        return new

    async def get_broadcasts(self) -> Mapping[str, str]:
        return self.versions


class Peer:
    """The connection that a request came by."""

    def __init__(self, address: str) -> None:
        self._address = address

    def has_left(self) -> bool:
        return False

    def peer_address(self) -> str:
        return self._address


class Client:
    """Calls the handler itself: no socket, no server."""

    def __init__(self, store: FakeStore, *, metrics_public: bool = False) -> None:
        async def status() -> ServerStatus:
            return ServerStatus(version="1", now_ms=2, started_at_ms=1, workers=())

        def health(request: Request) -> Response | None:
            return Response.of(200) if request.path == b"/__lbheartbeat__" else None

        sources = Sources(store=store, status=status, metrics=lambda: b"numbers 1\n", health=health)
        self._server = ConsoleServer(Console(), TOKENS, sources, metrics_public=metrics_public)

    async def __call__(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] = LOCAL,
        body: bytes = b"",
        peer: str = "127.0.0.1",
    ) -> tuple[int, dict[str, str], bytes]:
        request = Request(
            method.encode(),
            path.encode(),
            {name.encode(): value.encode() for name, value in headers.items()},
            body=body,
            client=Peer(peer),
        )
        if len(body) > self._server.body_limit(request):
            request.body, request.oversize = b"", True
        answer = await self._server.handle(request)
        lines = answer.head.decode().split("\r\n")[1:-1]
        told = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        return answer.status, told, answer.body


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


@pytest.fixture
def client(store: FakeStore) -> Client:
    return Client(store)


async def test_a_new_broadcast_is_201_and_a_changed_one_200(
    client: Client, store: FakeStore
) -> None:
    first = await client("PUT", "/v1/broadcasts/news/daily", AS_PUBLISHER, b'"v1"')
    second = await client("PUT", "/v1/broadcasts/news/daily", AS_PUBLISHER, b'"v2"')

    assert (first[0], msgspec.json.decode(first[2])) == (201, {"code": 201})
    assert (second[0], msgspec.json.decode(second[2])) == (200, {"code": 200})
    assert store.versions == {"news/daily": '"v2"'}


@pytest.mark.parametrize(
    "headers, status",
    [({}, 401), ({"authorization": "Bearer wrong"}, 401), ({"authorization": "Bearer rd"}, 403)],
)
async def test_publishing_needs_the_broadcasters_token(
    client: Client, store: FakeStore, headers: dict[str, str], status: int
) -> None:
    answer = await client("PUT", "/v1/broadcasts/news/daily", headers, b"v1")

    assert answer[0] == status
    assert store.versions == {}


async def test_another_broadcasters_token_is_forbidden(client: Client) -> None:
    answer = await client("PUT", "/v1/broadcasts/weather/daily", AS_PUBLISHER, b"v1")

    assert answer[0] == 403


@pytest.mark.parametrize(
    "path, body, status",
    [
        (f"/v1/broadcasts/{'b' * 65}/c", b"v", 400),
        (f"/v1/broadcasts/b/{'c' * 129}", b"v", 400),
        ("/v1/broadcasts/b.x/c", b"v", 400),
        ("/v1/broadcasts/b/c", b"", 400),
        ("/v1/broadcasts/b/c", "ü".encode(), 400),
        ("/v1/broadcasts/b/c", b"v\n", 400),
        ("/v1/broadcasts/b/c", b"v" * 201, 413),
    ],
)
async def test_what_is_too_long_or_of_another_form_is_refused_and_changes_nothing(
    client: Client, store: FakeStore, path: str, body: bytes, status: int
) -> None:
    answer = await client("PUT", path, {"authorization": "Bearer any"}, body)

    assert answer[0] == status
    assert store.versions == {}


@pytest.mark.parametrize("length", [1, 200])
async def test_a_version_has_up_to_two_hundred_bytes(client: Client, length: int) -> None:
    path = f"/v1/broadcasts/{'b' * 64}/{'c' * 128}"
    answer = await client("PUT", path, {"authorization": "Bearer any"}, b"v" * length)

    assert answer[0] == 201


async def test_the_old_services_cancel_changes_nothing(client: Client, store: FakeStore) -> None:
    answer = await client("PUT", "/v1/broadcasts/news/daily", AS_PUBLISHER, b"____NOP____")

    assert answer[0] == 200
    assert store.versions == {}


async def test_a_store_that_is_down_is_503(client: Client, store: FakeStore) -> None:
    store.down = True

    assert (await client("PUT", "/v1/broadcasts/news/x", AS_PUBLISHER, b"v"))[0] == 503


async def test_the_reader_sees_all_broadcasts(client: Client, store: FakeStore) -> None:
    store.versions["a/b"] = "1"
    status, _, body = await client("GET", "/v1/broadcasts", AS_READER)

    assert status == 200
    assert msgspec.json.decode(body) == {"code": 200, "broadcasts": {"a/b": "1"}}
    assert (await client("GET", "/v1/broadcasts"))[0] == 401
    assert (await client("GET", "/v1/broadcasts", AS_PUBLISHER))[0] == 403


async def test_the_page_is_for_this_machine_or_the_operator(client: Client) -> None:
    status, headers, body = await client("GET", "/")
    refused = await client("GET", "/", peer="192.0.2.1")
    operator = await client("GET", "/", {"authorization": "Bearer op"}, peer="192.0.2.1")

    assert status == 200
    assert b"<title>Waystation</title>" in body
    assert b"<script" not in body
    assert "default-src 'none'" in headers["content-security-policy"]
    assert refused[0] == 401
    assert refused[1]["www-authenticate"].startswith("Basic")
    assert operator[0] == 200


async def test_metrics_are_for_the_same_unless_they_are_public(
    client: Client, store: FakeStore
) -> None:
    assert (await client("GET", "/metrics"))[2] == b"numbers 1\n"
    assert (await client("GET", "/metrics", peer="192.0.2.1"))[0] == 401
    assert (await Client(store, metrics_public=True)("GET", "/metrics", peer="192.0.2.1"))[0] == 200


async def test_health_routes_answer_and_the_rest_is_not_there(client: Client) -> None:
    assert (await client("GET", "/__lbheartbeat__", peer="192.0.2.1"))[0] == 200
    assert (await client("GET", "/nothing"))[0] == 404
    assert (await client("DELETE", "/v1/broadcasts"))[0] == 405
