import pytest

from tests.unit.push.endpoint.endpoint_world import CHID, NODE, UAID, World
from tests.unit.push.vapid_tokens import AUDIENCE, AppServer


@pytest.fixture
async def world() -> World:
    world = World()
    await world.subscribe()
    return world


async def posted(world: World) -> str:
    location = (await world.post(**world.signed())).headers["Location"]
    await world.milestones.flush()
    return location.removeprefix(AUDIENCE) + "/status"


async def test_a_sender_sees_what_became_of_its_message(world: World) -> None:
    reply = await world.ask("GET", await posted(world), **world.signed())

    assert (reply.status, reply.headers["Cache-Control"]) == (200, "no-store")
    at_ms = world.clock.now_ms()
    assert reply.json == {
        "state": "stored",
        "final": False,
        "milestones": [{"state": "received", "at_ms": at_ms}, {"state": "stored", "at_ms": at_ms}],
    }


async def test_ttl_zero_for_nobody_ends_expired(world: World) -> None:
    location = (await world.post(ttl="0", **world.signed())).headers["Location"]
    await world.milestones.flush()
    path = location.removeprefix(AUDIENCE) + "/status"
    reply = await world.ask("GET", path, **world.signed())

    assert (reply.json["state"], reply.json["final"]) == ("expired", True)


async def test_only_the_key_of_the_post_may_ask(world: World) -> None:
    path = await posted(world)
    stranger = await world.ask("GET", path, authorization=AppServer(8).authorization(world.now_s))
    nobody = await world.ask("GET", path)

    assert (stranger.status, stranger.errno) == (401, 109)
    assert (nobody.status, nobody.errno) == (401, 109)


async def test_unsigned_and_unknown_messages_have_no_status(world: World) -> None:
    location = (await world.post()).headers["Location"]
    await world.milestones.flush()
    unknown, _ = world.ids.for_timestamp(UAID, CHID, 5)
    for path in (location.removeprefix(AUDIENCE) + "/status", f"/m/{unknown}/status"):
        assert (await world.ask("GET", path, **world.signed())).status == 404


async def test_without_room_for_statuses_a_signed_message_is_taken_and_counted(
    world: World,
) -> None:
    world.milestones._notes_max = 0
    replies = [await world.post(**world.signed()), await world.post()]

    assert [reply.status for reply in replies] == [201, 201]
    assert world.milestones.dropped == 2, "received and stored"


async def test_a_status_ends_an_hour_after_its_message(world: World) -> None:
    path = await posted(world)
    world.clock.advance(300 + 3599)
    assert (await world.ask("GET", path, **world.signed())).status == 200
    world.clock.advance(2)

    assert (await world.ask("GET", path, **world.signed())).status == 404


async def test_a_garbage_id_is_400(world: World) -> None:
    assert (await world.ask("GET", "/m/garbage/status", **world.signed())).status == 400


async def test_a_route_is_not_needed_for_a_status() -> None:
    world = World()
    await world.subscribe(node_id=NODE)
    reply = await world.ask("GET", await posted(world), **world.signed())

    assert reply.json["state"] == "received"
