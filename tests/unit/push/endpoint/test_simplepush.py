import pytest

from tests.unit.push.endpoint.endpoint_world import CHID, NODE, UAID, World
from waystation.push.model import Uaid, Update
from waystation.push.wire.relay import Answer


async def world_of(dialect: str, node_id: str | None = None) -> World:
    world = World(dialect=dialect)
    await world.subscribe(router_type="simplepush", node_id=node_id)
    return world


def path(world: World, prefix: str = "/spush/v1/") -> str:
    return prefix + world.keys.endpoint_token(UAID, CHID)


def update(world: World, version: int, data: str | None = None) -> Update:
    return Update(CHID, version, data, world.clock.now_ms())


async def waiting(world: World) -> list[Update]:
    return list(await world.store.fetch_updates(UAID, limit=10))


@pytest.mark.parametrize("prefix", ["/spush/v1/", "/update/", "/push/"])
async def test_a_version_reaches_a_connected_user_agent_with_its_data(prefix: str) -> None:
    """C-147, C-151"""
    world = await world_of("p", NODE)
    reply = await world.ask("PUT", path(world, prefix), b"version=5&data=hi%20there")

    assert (reply.status, reply.body) == (200, b"Delivered")
    assert "Location" not in reply.headers
    assert world.relay.pushed == [(NODE, UAID, update(world, 5, "hi there"))]
    assert not await waiting(world)


async def test_the_newest_version_waits_without_its_data() -> None:
    """C-148, C-151"""
    world = await world_of("p")
    replies = [
        await world.ask("PUT", path(world), f"version={v}&data=x".encode()) for v in (5, 7, 6)
    ]

    assert [(r.status, r.body) for r in replies] == [(202, b"Notification Stored")] * 3
    assert await waiting(world) == [update(world, 7)]


async def test_the_query_is_read_too_and_the_body_wins() -> None:
    world = await world_of("p", NODE)
    await world.ask("PUT", path(world) + "?version=3&data=q")
    await world.ask("PUT", path(world) + "?version=3", b"version=4")

    assert [update for _, _, update in world.relay.pushed] == [
        update(world, 3, "q"),
        update(world, 4),
    ]


@pytest.mark.parametrize("body", [b"", b"version=", b"version=%20", b"data=x"])
async def test_without_a_version_dialect_p_takes_the_time(body: bytes) -> None:
    """C-150"""
    world = await world_of("p", NODE)
    reply = await world.ask("PUT", path(world), body)

    assert reply.status == 200
    update = world.relay.pushed[0][2]
    assert isinstance(update, Update)
    assert update.version == world.now_s


async def test_without_a_version_dialect_s_refuses() -> None:
    """C-150"""
    world = await world_of("s", NODE)
    reply = await world.ask("PUT", path(world))

    assert (reply.status, reply.message) == (401, "No version present")
    assert not world.relay.pushed


@pytest.mark.parametrize("dialect", ["p", "s"])
@pytest.mark.parametrize("version", ["-1", "abc", "1.5", "%2B1", "1_0", "9" * 20, "%d9%a3", "0x1"])
async def test_what_is_not_a_number_is_400(dialect: str, version: str) -> None:
    """C-150"""
    world = await world_of(dialect, NODE)
    reply = await world.ask("PUT", path(world), f"version={version}".encode())

    assert reply.status == 400
    assert not world.relay.pushed


@pytest.mark.parametrize("dialect, status", [("p", 413), ("s", 401)])
async def test_too_much_data_is_refused(dialect: str, status: int) -> None:
    world = await world_of(dialect, NODE)
    for size in (4097, 100_000):
        reply = await world.ask("PUT", path(world), b"version=1&data=" + b"x" * size)
        assert (reply.status, reply.errno) == (status, 104)
    fits = await world.ask("PUT", path(world), b"version=1&data=" + b"%41" * 4096)

    assert fits.status == 200


@pytest.mark.parametrize("dialect, status", [("p", 404), ("s", 401)])
async def test_a_bad_token(dialect: str, status: int) -> None:
    world = await world_of(dialect)
    reply = await world.ask("PUT", "/push/garbage", b"version=1")

    assert (reply.status, reply.errno) == (status, 102)


@pytest.mark.parametrize("dialect, status", [("p", 410), ("s", 404)])
async def test_an_unknown_user_agent(dialect: str, status: int) -> None:
    world = await world_of(dialect)
    token = world.keys.endpoint_token(Uaid(bytes(16)), CHID)
    reply = await world.ask("PUT", f"/push/{token}", b"version=1")

    assert reply.status == status


@pytest.mark.parametrize("node_id", [NODE, None])
async def test_dialect_s_says_success_whether_direct_or_stored(node_id: str | None) -> None:
    world = await world_of("s", node_id)
    reply = await world.ask("PUT", path(world, "/push/"), b"version=1")

    assert (reply.status, reply.body) == (200, b"Success")


async def test_a_token_of_the_first_design_holds_text() -> None:
    world = await world_of("s", NODE)
    token = world.keys.seal(f"{UAID.hex()}:{CHID.hex()}".encode())

    assert (await world.ask("PUT", f"/push/{token}", b"version=1")).status == 200


async def test_a_web_push_user_agent_is_of_another_kind() -> None:
    """C-152"""
    world = World()
    await world.subscribe(node_id=NODE)
    reply = await world.ask("PUT", path(world), b"version=1")

    assert (reply.status, reply.errno) == (400, 108)


async def test_a_busy_node_is_told_after_the_version_is_stored() -> None:
    world = await world_of("p", NODE)
    world.relay.push_answer = Answer.BUSY
    reply = await world.ask("PUT", path(world), b"version=9")

    assert reply.status == 200  # the node took it up from storage at once
    assert await waiting(world) == [update(world, 9)]
    assert world.relay.checked == [(NODE, UAID)]


async def test_switched_off_its_paths_do_not_exist() -> None:
    world = await world_of("off")

    assert (await world.ask("PUT", path(world), b"version=1")).status == 404
