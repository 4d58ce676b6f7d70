import base64
import json
from typing import Any

import pytest

from tests.unit.push.endpoint.endpoint_world import CHID, NODE, UAID, World
from tests.unit.push.vapid_tokens import AUDIENCE
from waystation.base.errors import StoreUnavailableError
from waystation.push.model import Notification, Uaid, Urgency

PATH = "/_matrix/push/v1/notify"


@pytest.fixture
async def world() -> World:
    world = World()
    await world.subscribe(node_id=NODE)
    return world


def body(*pushkeys: str, **fields: Any) -> bytes:
    devices = [{"app_id": "im.app", "pushkey": key, "data": {}} for key in pushkeys]
    return json.dumps({"notification": {**fields, "devices": devices}}).encode()


def payload(world: World) -> Any:
    notification = world.relay.pushed[-1][2]
    assert isinstance(notification, Notification)
    assert notification.data is not None
    return json.loads(base64.urlsafe_b64decode(notification.data + "=="))


async def test_an_app_finds_the_gateway_on_its_own_server(world: World) -> None:
    reply = await world.ask("GET", PATH)

    assert (reply.status, reply.json) == (200, {"unifiedpush": {"gateway": "matrix"}})


async def test_a_notification_is_forwarded_without_its_devices(world: World) -> None:
    key = AUDIENCE + world.path()
    reply = await world.ask("POST", PATH, body(key, event_id="$e", room_id="!r", prio="low"))

    assert (reply.status, reply.json) == (200, {"rejected": []})
    assert payload(world) == {"notification": {"event_id": "$e", "room_id": "!r", "prio": "low"}}
    notification = world.relay.pushed[0][2]
    assert isinstance(notification, Notification)
    assert notification.headers == {"encoding": "aes128gcm"}
    assert notification.urgency is Urgency.LOW
    assert notification.ttl_s > 0


async def test_pushkeys_that_can_never_work_are_rejected(world: World) -> None:
    good = AUDIENCE + world.path()
    bad = [
        AUDIENCE + f"/wpush/v1/{world.keys.endpoint_token(Uaid(bytes(16)), CHID)}",
        AUDIENCE + world.path("v2", world.sender.key_hash),
        AUDIENCE + "/wpush/v1/garbage",
        "https://push.example.org.evil.example/wpush/v1/x",
        "http://169.254.169.254/latest",
        AUDIENCE + "/wpush/v1/é",
        "",
    ]
    reply = await world.ask("POST", PATH, body(*bad, good))

    assert (reply.status, reply.json) == (200, {"rejected": bad})
    assert len(world.relay.pushed) == 1


async def test_one_pushkey_is_served_once(world: World) -> None:
    key = AUDIENCE + world.path()
    await world.ask("POST", PATH, body(key, key))

    assert len(world.relay.pushed) == 1


async def test_a_large_notification_is_cut_down_to_its_ids(world: World) -> None:
    key = AUDIENCE + world.path()
    large = body(key, event_id="$e", room_id="!r", content={"body": "x" * 10_000}, sender="@a:b")
    reply = await world.ask("POST", PATH, large)

    assert reply.json == {"rejected": []}
    assert payload(world) == {"notification": {"event_id": "$e", "room_id": "!r"}}


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"[]",
        b"{}",
        b'{"notification":{}}',
        b'{"notification":{"devices":[]}}',
        b'{"notification":{"devices":[{}]}}',
        b'{"notification":{"devices":[{"pushkey":5}]}}',
        b"\xff",
        b'{"notification":{"devices":[{"pushkey":"a\x86"}]}}',
        b"x" * 70_000,
        body(*[f"https://a/{n}" for n in range(65)]),
        body("x", event_id="x" * 20_000),
        b"[" * 20_000,
    ],
)
async def test_what_is_not_a_notification_is_400(world: World, bad: bytes) -> None:
    assert (await world.ask("POST", PATH, bad)).status == 400
    assert not world.relay.pushed


async def test_a_failure_of_ours_makes_the_homeserver_repeat(world: World) -> None:
    world.store.failures["look_up"] = StoreUnavailableError("down")
    reply = await world.ask("POST", PATH, body(AUDIENCE + world.path()))

    assert reply.status == 503


async def test_an_offline_user_agent_finds_it_later() -> None:
    world = World()
    await world.subscribe()
    await world.ask("POST", PATH, body(AUDIENCE + world.path(), event_id="$e"))

    assert len(await world.stored(UAID)) == 1
