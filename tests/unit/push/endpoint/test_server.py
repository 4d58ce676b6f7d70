"""Routes, methods, CORS and the limits of the endpoint's HTTP."""

from typing import Any

import pytest

from tests.unit.push.endpoint.endpoint_world import CHID, NODE, UAID, World
from tests.unit.push.vapid_tokens import AppServer
from waystation.net.http1.message import Request, Response
from waystation.push.settings import Endpoint

ORIGIN = "https://page.example.org"


@pytest.fixture
async def world() -> World:
    world = World()
    await world.subscribe(node_id=NODE)
    return world


@pytest.mark.parametrize("path", ["/", "/nothing", "/wpush", "/m", "/m/x/y", "/subscribe", "*"])
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "PATCH"])
async def test_an_unknown_path_is_404_and_empty(world: World, method: str, path: str) -> None:
    """C-091"""
    reply = await world.ask(method, path)

    assert (reply.status, reply.body) == (404, b"")


@pytest.mark.parametrize(
    "method, path, allowed",
    [
        ("PUT", "/wpush/v1/abc", "GET, POST, OPTIONS"),
        ("DELETE", "/wpush/v2/abc", "GET, POST, OPTIONS"),
        ("GET", "/m/abc", "DELETE, OPTIONS"),
        ("HEAD", "/m/abc", "DELETE, OPTIONS"),
        ("POST", "/m/abc/status", "GET, OPTIONS"),
        ("GET", "/spush/v1/abc", "PUT, OPTIONS"),
        ("PUT", "/_matrix/push/v1/notify", "GET, POST, OPTIONS"),
    ],
)
async def test_a_known_path_with_another_method_is_405(
    world: World, method: str, path: str, allowed: str
) -> None:
    """C-091, C-116"""
    reply = await world.ask(method, path)

    assert (reply.status, reply.headers["Allow"]) == (405, allowed)
    assert reply.json["code"] == 405


@pytest.mark.parametrize("path", ["/wpush/v1/abc", "/wpush/v2/abc"])
async def test_reading_an_endpoint_answers_unifiedpush_discovery(world: World, path: str) -> None:
    """C-091"""
    reply = await world.ask("GET", path, origin=ORIGIN)

    assert reply.status == 200
    assert reply.json == {"unifiedpush": {"version": 1}}
    assert reply.headers["Access-Control-Allow-Origin"] == ORIGIN


async def test_every_error_body_has_its_five_keys(world: World) -> None:
    """C-114"""
    replies = [
        await world.post("/wpush/v1/garbage"),
        await world.post(ttl="x"),
        await world.post(authorization=""),
        await world.post(body=b"x" * 6000),
        await world.ask("DELETE", "/m/x"),
        await world.ask("GET", "/m/x"),
        await world.ask("PUT", "/spush/v1/garbage"),
        await world.ask("POST", "/_matrix/push/v1/notify", b"{"),
    ]

    for reply in replies:
        assert list(reply.json) == ["code", "errno", "error", "message", "more_info"]
        assert reply.json["code"] == reply.status
        assert reply.headers["Content-Type"] == "application/json"
        assert reply.json["more_info"].startswith("https://")


class TestCors:
    async def test_a_preflight_permits_everything(self, world: World) -> None:
        """C-115"""
        reply = await world.ask(
            "OPTIONS",
            world.path(),
            origin=ORIGIN,
            access_control_request_method="POST",
            access_control_request_headers="ttl, content-encoding, x-own",
        )

        assert (reply.status, reply.body) == (204, b"")
        assert reply.headers["Access-Control-Allow-Origin"] == ORIGIN
        assert reply.headers["Access-Control-Allow-Methods"] == "DELETE, GET, POST, PUT"
        assert reply.headers["Access-Control-Allow-Headers"] == "ttl, content-encoding, x-own"
        assert reply.headers["Access-Control-Max-Age"] == "3600"

    async def test_answers_carry_the_origin_and_show_their_headers(self, world: World) -> None:
        """C-115"""
        for reply in (
            await world.post(origin=ORIGIN),
            await world.post("/wpush/v1/garbage", origin=ORIGIN),
            await world.ask("GET", "/nothing", origin=ORIGIN),
        ):
            assert reply.headers["Access-Control-Allow-Origin"] == ORIGIN
            exposed = reply.headers["Access-Control-Expose-Headers"]
            assert {"location", "ttl", "retry-after"} <= set(exposed.split(", "))

    async def test_without_an_origin_there_is_nothing_to_say(self, world: World) -> None:
        reply = await world.post()

        assert not [name for name in reply.headers if name.startswith("Access-Control")]

    async def test_options_without_an_origin_names_the_methods(self, world: World) -> None:
        assert (await world.ask("OPTIONS", world.path())).headers["Allow"] == "GET, POST, OPTIONS"
        assert (await world.ask("OPTIONS", "/nothing")).status == 404


async def test_health_routes_come_from_outside(world: World) -> None:
    def health(request: Request) -> Response | None:
        return Response.of(200, b"well") if request.path == b"/__heartbeat__" else None

    world.server._health = health

    assert (await world.ask("GET", "/__heartbeat__")).body == b"well"
    assert (await world.ask("GET", "/metrics")).status == 404


async def test_more_requests_than_the_limit_are_told_to_come_back() -> None:
    world = World(Endpoint(max_requests=1))
    await world.subscribe(node_id=NODE)
    nested: list[int] = []

    async def during() -> None:
        world.relay.during = None
        reply = await world.post()
        nested.append(reply.status)
        assert reply.headers["Retry-After"] == "1"
        assert (await world.ask("DELETE", "/m/x")).status == 503

    world.relay.during = during

    assert (await world.post()).status == 201
    assert nested == [503]
    assert (await world.post()).status == 201


async def test_a_bug_is_500_999_and_reported_without_its_text(world: World) -> None:
    async def during() -> None:
        raise ZeroDivisionError("secret inside")

    world.relay.during = during
    reply = await world.post()

    assert (reply.status, reply.errno) == (500, 999)
    assert b"secret" not in reply.body
    assert [type(bug) for bug in world.bugs] == [ZeroDivisionError]


async def test_requests_and_failures_are_counted(world: World) -> None:
    await world.post()
    await world.post("/wpush/v1/garbage")
    await world.post(ttl="x")

    assert world.server.requests == 3
    assert world.server.failures == {"invalid_token": 1, "no_ttl": 1}


class TestLimits:
    async def test_one_subscription_may_be_posted_to_so_often(self) -> None:
        world = World(Endpoint(rate_per_endpoint=1.0, burst_per_endpoint=2))
        await world.subscribe(node_id=NODE)
        replies = [await world.post() for _ in range(3)]

        assert [reply.status for reply in replies] == [201, 201, 429]
        assert replies[2].headers["Retry-After"] == "1"
        world.clock.advance(1)
        assert (await world.post()).status == 201

    async def test_one_key_may_post_so_often_and_others_go_on(self) -> None:
        world = World(Endpoint(rate_per_key=0.1, burst_per_key=1))
        await world.subscribe(node_id=NODE)
        other: dict[str, Any] = {"authorization": AppServer(8).authorization(world.now_s)}

        assert (await world.post(**world.signed())).status == 201
        limited = await world.post(**world.signed())
        assert (limited.status, limited.headers["Retry-After"]) == (429, "10")
        assert (await world.post(**other)).status == 201
        assert (await world.post()).status == 201

    async def test_the_rate_is_shared_among_the_workers(self) -> None:
        world = World(Endpoint(rate_per_endpoint=4.0, burst_per_endpoint=4), workers=2)
        await world.subscribe(node_id=NODE)

        assert [(await world.post()).status for _ in range(3)] == [201, 201, 429]

    async def test_the_limit_comes_after_the_owner_and_before_the_store(self) -> None:
        world = World(Endpoint(rate_per_endpoint=0.1, burst_per_endpoint=1))
        token = world.keys.endpoint_token(UAID, CHID, world.sender.key_hash)

        assert (await world.post(f"/wpush/v2/{token}")).status == 401
        assert (await world.post(f"/wpush/v2/{token}", **world.signed())).status == 410
        assert (await world.post(f"/wpush/v2/{token}", **world.signed())).status == 429
