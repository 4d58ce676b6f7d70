"""The delivery algorithm and its races, with a relay that answers as told."""

from typing import Literal

import msgspec
import pytest

from tests.unit.push.endpoint.endpoint_world import CHID, NODE, OTHER_NODE, UAID, World
from waystation.base.errors import StoreFullError, StoreUnavailableError, UnavailableError
from waystation.push.endpoint import router
from waystation.push.endpoint.observer import Observer
from waystation.push.model import Notification, Update, UserAgent
from waystation.push.token import MessageIds, fresh_key
from waystation.push.wire.relay import Answer


@pytest.fixture
async def world() -> World:
    return World()


async def test_a_connected_user_agent_gets_it_directly_and_nothing_is_stored(world: World) -> None:
    await world.subscribe(node_id=NODE)
    reply = await world.post(body=b"data")

    assert reply.status == 201
    ((node_id, uaid, notification),) = world.relay.pushed
    assert (node_id, uaid, notification.channel_id, notification.data) == (
        NODE,
        UAID,
        CHID,
        "ZGF0YQ",
    )
    assert not await world.stored()
    assert not world.relay.checked


async def test_only_what_leaves_the_worker_is_told_as_relayed(world: World) -> None:
    told: list[str] = []

    class Told(Observer):
        def relayed(self, notification: Notification | Update, node_id: str) -> None:
            told.append(node_id)

    own = router.Router(
        world.store, world.relay, world.milestones, Told(), ids=world.ids, own_node_id=NODE
    )
    message_id, sort_key = world.ids.for_timestamp(UAID, CHID, 1)
    sent = Notification(CHID, message_id, sort_key, 1, 60)
    for node_id in (NODE, OTHER_NODE):
        await own.deliver(UserAgent(uaid=UAID, connected_at_ms=1, node_id=node_id), sent)

    assert [node_id for node_id, _, _ in world.relay.pushed] == [NODE, OTHER_NODE]
    assert told == [OTHER_NODE]


async def test_an_offline_user_agent_finds_it_stored(world: World) -> None:
    """C-044, the endpoint's side; C-079."""
    await world.subscribe()
    reply = await world.post(body=b"data")

    assert reply.status == 201
    (row,) = await world.stored()
    assert reply.headers["Location"].endswith(f"/m/{row.message_id}")
    assert not world.relay.pushed
    assert not world.relay.checked


async def test_a_busy_node_makes_us_store_then_tell(world: World) -> None:
    """C-069: the row is there before the node is told, and the route stays."""
    await world.subscribe(node_id=NODE)
    world.relay.push_answer = Answer.BUSY
    seen_at_check: list[int] = []
    tell = world.relay.check_stored

    async def check(node_id: str, uaid: object) -> Answer:
        seen_at_check.append(len(await world.stored()))
        return await tell(node_id, UAID)

    world.relay.check_stored = check
    reply = await world.post()

    assert reply.status == 201
    assert seen_at_check == [1]
    assert world.relay.checked == [(NODE, UAID)]
    assert await world.node_of() == NODE


async def test_a_user_agent_that_is_not_there_loses_its_route(world: World) -> None:
    """C-072"""
    await world.subscribe(node_id=NODE)
    world.relay.push_answer = Answer.ABSENT
    reply = await world.post()

    assert reply.status == 201
    assert len(await world.stored()) == 1
    assert await world.node_of() is None
    assert not world.relay.checked


async def test_a_node_that_cannot_be_reached_loses_its_routes(world: World) -> None:
    """C-073"""
    await world.subscribe(node_id=NODE)
    world.relay.push_answer = Answer.UNREACHABLE
    reply = await world.post()

    assert reply.status == 201
    assert len(await world.stored()) == 1
    assert await world.node_of() is None


async def test_an_odd_answer_leaves_the_route_alone(world: World) -> None:
    await world.subscribe(node_id=NODE)
    world.relay.push_answer = Answer.UNEXPECTED
    reply = await world.post()

    assert reply.status == 201
    assert await world.node_of() == NODE
    assert world.relay.checked == [(NODE, UAID)]


@pytest.mark.parametrize("answer", [Answer.ABSENT, Answer.UNREACHABLE])
async def test_a_user_agent_that_moved_meanwhile_is_told_at_its_new_node(
    world: World, answer: Answer
) -> None:
    """C-074: the clear does not match, the second read finds the new route."""
    await world.subscribe(node_id=NODE, connected_at_ms=1000)
    world.relay.push_answer = answer

    async def move() -> None:
        moved = UserAgent(uaid=UAID, connected_at_ms=2000, node_id=OTHER_NODE)
        assert await world.store.claim_route(moved)

    world.relay.during = move
    reply = await world.post()

    assert reply.status == 201
    assert len(await world.stored()) == 1
    assert await world.node_of() == OTHER_NODE
    assert world.relay.checked == [(OTHER_NODE, UAID)]


async def test_a_reconnect_to_the_same_node_is_not_undone(world: World) -> None:
    """The same node id, a later connection: the fence is the time it connected."""
    await world.subscribe(node_id=NODE, connected_at_ms=1000)
    world.relay.push_answer = Answer.ABSENT

    async def reconnect() -> None:
        again = UserAgent(uaid=UAID, connected_at_ms=2000, node_id=NODE)
        assert await world.store.claim_route(again)

    world.relay.during = reconnect
    await world.post()

    assert await world.node_of() == NODE
    assert world.relay.checked == [(NODE, UAID)]


@pytest.mark.parametrize(
    "answer", [Answer.BUSY, Answer.ABSENT, Answer.UNREACHABLE, Answer.UNEXPECTED]
)
async def test_ttl_zero_is_direct_or_nothing(world: World, answer: Answer) -> None:
    """C-075, C-054"""
    await world.subscribe(node_id=NODE)
    world.relay.push_answer = answer
    reply = await world.post(ttl="0")

    assert (reply.status, reply.headers["TTL"]) == (201, "0")
    assert "Location" in reply.headers
    assert not await world.stored()
    assert not world.relay.checked


async def test_ttl_zero_for_nobody_is_answered_as_if_delivered(world: World) -> None:
    """C-054"""
    await world.subscribe()
    reply = await world.post(ttl="0")

    assert (reply.status, reply.headers["TTL"]) == (201, "0")
    assert not await world.stored()


@pytest.mark.parametrize(
    "error", [StoreUnavailableError("down"), UnavailableError("down"), StoreFullError("full")]
)
async def test_a_store_that_does_not_take_it_is_503(world: World, error: UnavailableError) -> None:
    """C-076"""
    await world.subscribe()
    world.store.failures["save"] = error
    reply = await world.post()

    assert (reply.status, reply.errno) == (503, 201)
    assert reply.headers["Retry-After"] == "120"


async def test_a_store_that_cannot_be_read_is_503(world: World) -> None:
    await world.subscribe()
    world.store.failures["look_up"] = StoreUnavailableError("down")
    reply = await world.post()

    assert (reply.status, reply.errno) == (503, 201)


async def test_a_failing_clear_does_not_matter(world: World) -> None:
    await world.subscribe(node_id=NODE)
    world.relay.push_answer = Answer.ABSENT
    world.store.failures["clear_route"] = StoreUnavailableError("down")
    reply = await world.post()

    assert reply.status == 201
    assert len(await world.stored()) == 1


async def test_a_user_agent_that_leaves_while_it_is_stored_is_410(world: World) -> None:
    """C-077"""
    await world.subscribe(node_id=NODE)
    world.relay.push_answer = Answer.ABSENT

    async def leave() -> None:
        await world.store.remove_user_agent(UAID)

    world.relay.during = leave
    reply = await world.post()

    assert (reply.status, reply.errno) == (410, 105)
    assert reply.headers["Cache-Control"] == "max-age=86400"


async def test_a_second_read_that_fails_is_no_loss(world: World) -> None:
    """C-078: it is stored, so the answer is 201."""
    await world.subscribe()
    world.store.failures["get_user_agent"] = StoreUnavailableError("down")
    reply = await world.post()

    assert reply.status == 201
    assert not world.relay.checked


@pytest.mark.parametrize("answer", [Answer.FLAGGED, Answer.ABSENT, Answer.UNEXPECTED, Answer.BUSY])
async def test_what_the_told_node_answers_changes_nothing(world: World, answer: Answer) -> None:
    await world.subscribe(node_id=NODE)
    world.relay.push_answer = Answer.BUSY
    world.relay.check_answer = answer
    reply = await world.post()

    assert reply.status == 201
    assert await world.node_of() == NODE


async def test_a_told_node_that_is_gone_loses_its_route(world: World) -> None:
    await world.subscribe(node_id=NODE)
    world.relay.push_answer = Answer.BUSY
    world.relay.check_answer = Answer.UNREACHABLE
    reply = await world.post()

    assert reply.status == 201
    assert len(await world.stored()) == 1
    assert await world.node_of() is None


class TestAutopushKeys:
    """Keys of three parts (`push.sort_keys = "autopush"`): another node may use the same."""

    @pytest.fixture
    async def world(self) -> World:
        return World(sort_keys="autopush")

    async def other_node_saves(self, world: World, at_ms: int) -> Notification:
        ids = MessageIds(world.keys, world.clock, sort_keys="autopush")
        message_id, sort_key = ids.for_timestamp(UAID, CHID, at_ms)
        row = Notification(CHID, message_id, sort_key, at_ms, 300, data="dGhlaXJz")
        assert await world.store.save_new(UAID, row)
        return row

    async def test_a_taken_millisecond_gives_way_to_the_next_and_the_answer_names_it(
        self, world: World
    ) -> None:
        await world.subscribe()
        now_ms = world.clock.now_ms()
        theirs = [await self.other_node_saves(world, now_ms + n) for n in range(2)]
        reply = await world.post(body=b"ours", **world.signed())
        await world.milestones.flush()

        *others, ours = await world.stored()
        assert others == theirs, "nothing is written over"
        assert ours.sort_key.startswith(f"02:{now_ms + 2}:")
        assert ours.accepted_at_ms == now_ms, "it ends when it would have"
        assert reply.headers["Location"].endswith(f"/m/{ours.message_id}")
        assert world.ids.parse(ours.message_id).sort_key == ours.sort_key
        status = await world.store.get_status(ours.message_id, now_ms=now_ms)
        assert status is not None
        assert list(status.milestones) == ["received", "stored"]

    async def test_topics_replace_their_predecessor_as_ever(self, world: World) -> None:
        await world.subscribe()
        await world.post(body=b"x", topic="t")
        reply = await world.post(body=b"x", topic="t")

        (row,) = await world.stored()
        assert reply.headers["Location"].endswith(row.message_id)

    async def test_a_channel_without_a_free_key_is_asked_to_wait(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(router, "KEYS_TRIED_MAX", 3)
        await world.subscribe()
        for n in range(3):
            await self.other_node_saves(world, world.clock.now_ms() + n)
        reply = await world.post(body=b"x")

        assert (reply.status, reply.errno) == (503, 201)
        assert "Retry-After" in reply.headers
        assert len(await world.stored()) == 3

    async def test_what_was_handed_back_under_another_key_can_be_withdrawn(
        self, world: World
    ) -> None:
        await world.subscribe(node_id=NODE)
        location = (await world.post(body=b"x")).headers["Location"]
        ((_, _, direct),) = world.relay.pushed
        moved = msgspec.structs.replace(
            direct, sort_key=fresh_key(CHID, direct.accepted_at_ms + 5000)
        )
        await world.store.save_new(UAID, moved)
        other = await self.other_node_saves(world, world.clock.now_ms() + 7)
        reply = await world.ask("DELETE", location.removeprefix(world.settings.url))

        assert reply.status == 204
        assert await world.stored() == [other]


async def test_with_our_own_keys_nobody_asks_whether_one_is_free(world: World) -> None:
    await world.subscribe()
    world.store.failures["save_new"] = StoreUnavailableError("it was asked")

    assert (await world.post(body=b"x")).status == 201


@pytest.mark.parametrize("sort_keys", ["unique", "autopush"])
async def test_a_direct_post_asks_the_store_once_and_a_stored_one_three_times(
    sort_keys: Literal["unique", "autopush"],
) -> None:
    """Each call is a round trip on every server store; conformance tests count those."""
    world = World(sort_keys=sort_keys)
    await world.subscribe(node_id=NODE)
    world.store.calls.clear()
    await world.post(body=b"direct")
    direct = list(world.store.calls)
    world.relay.push_answer = Answer.BUSY
    await world.post(body=b"stored")

    assert direct == ["look_up"]
    save = "save" if sort_keys == "unique" else "save_new"
    assert world.store.calls == ["look_up", "look_up", save, "get_user_agent"]
