"""The registration API (webpush §4.7), without a vendor."""

import hashlib
import hmac
import json
from typing import Any

import pytest

from tests.unit.push.endpoint.endpoint_world import Reply, World
from tests.unit.push.endpoint.recording_bridge import RecordingBridge
from waystation.base.errors import StoreUnavailableError
from waystation.base.ids import is_canonical_dashed, parse_uuid
from waystation.push.model import USER_AGENT_LIFETIME_S, Uaid, UserAgent
from waystation.push.settings import Endpoint
from waystation.push.token import EndpointToken

TOKEN = "device-token-1"
HOME = "/v1/fcm/app/registration"
CHANNEL = "c0ffee00-1234-4abc-8def-0123456789ab"


def world(**given: Any) -> World:
    return World(bridges={"fcm": RecordingBridge(), "apns": RecordingBridge("apns")}, **given)


async def ask(
    here: World, method: str, path: str, body: object = None, secret: str | None = None
) -> Reply:
    headers: dict[str, str] = {}
    if body is not None:
        headers["content_type"] = "application/json"
    if secret is not None:
        headers["authorization"] = f"Bearer {secret}"
    return await here.ask(
        method, path, b"" if body is None else json.dumps(body).encode(), **headers
    )


async def register(here: World, path: str = HOME, **body: Any) -> dict[str, str]:
    reply = await ask(here, "POST", path, {"token": TOKEN, **body})
    assert reply.status == 200, reply.body
    return reply.json


def uaid_of(registered: dict[str, str]) -> Uaid:
    raw = parse_uuid(registered["uaid"])
    assert raw is not None
    return Uaid(raw)


async def record_of(here: World, registered: dict[str, str]) -> UserAgent:
    record = await here.store.get_user_agent(uaid_of(registered))
    assert record is not None
    return record


def opened(here: World, url: str) -> EndpointToken:
    version, token = url.removeprefix(here.settings.url + "/wpush/").split("/")
    return here.keys.open_endpoint(version, token.encode())


# C-117


async def test_a_device_registers_and_gets_ids_endpoint_and_secret() -> None:
    here = world()
    registered = await register(here)

    assert list(registered) == ["uaid", "channelID", "endpoint", "secret"]
    assert is_canonical_dashed(registered["uaid"])
    assert is_canonical_dashed(registered["channelID"])
    endpoint = opened(here, registered["endpoint"])
    assert endpoint.uaid == uaid_of(registered)
    assert endpoint.channel_id == parse_uuid(registered["channelID"])
    record = await record_of(here, registered)
    assert (record.router_type, record.node_id) == ("fcm", None)
    assert record.router_data == {"token": TOKEN, "app_id": "app"}


async def test_the_secret_is_the_hmac_of_the_uaid_under_the_first_key() -> None:
    registered = await register(world())
    plain_uaid = registered["uaid"].replace("-", "").encode()

    assert registered["secret"] == hmac.new(b"first", plain_uaid, hashlib.sha256).hexdigest()


# C-118


async def test_a_registration_may_bring_its_channel_and_key() -> None:
    here = world()
    key = here.sender.public_key
    registered = await register(here, channelID=CHANNEL, key=key)

    assert registered["channelID"] == CHANNEL
    assert "/wpush/v2/" in registered["endpoint"]
    assert opened(here, registered["endpoint"]).key_hash == here.sender.key_hash


async def test_null_stands_for_an_absent_field() -> None:
    registered = await register(world(), channelID=None, key=None, aps=None)

    assert "/wpush/v1/" in registered["endpoint"]


@pytest.mark.parametrize("key", ["", "short", "=" * 87, "A" * 87])
async def test_a_key_that_is_no_point_is_refused(key: str) -> None:
    reply = await ask(world(), "POST", HOME, {"token": TOKEN, "key": key})

    assert (reply.status, reply.errno) == (400, None)


# C-119


@pytest.mark.parametrize("token", ["1234567", "with blank in it", "", None])
async def test_a_token_that_cannot_be_one_is_refused(token: str | None) -> None:
    reply = await ask(world(), "POST", HOME, {"token": token})

    assert (reply.status, reply.errno, reply.message) == (400, None, "Invalid router token")


async def test_a_missing_token_is_refused() -> None:
    assert (await ask(world(), "POST", HOME, {})).status == 400


async def test_an_unknown_app_is_refused() -> None:
    reply = await ask(world(), "POST", "/v1/fcm/other/registration", {"token": TOKEN})

    assert (reply.status, reply.errno) == (400, 106)


@pytest.mark.parametrize("kind", ["gcm", "adm", "webpush", "simplepush", "stub", "FCM"])
async def test_types_that_no_bridge_here_has_are_refused(kind: str) -> None:
    here = world()
    posted = await ask(here, "POST", f"/v1/{kind}/app/registration", {"token": TOKEN})
    registered = await register(here)
    path = f"/v1/{kind}/app/registration/{registered['uaid']}"
    got = await ask(here, "GET", path, secret=registered["secret"])

    assert (posted.status, posted.errno) == (400, 108)
    assert (got.status, got.errno) == (400, 108)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"token":1}', b"\xff", b"[" * 3000])
async def test_a_body_of_another_form_is_refused(body: bytes) -> None:
    reply = await world().ask("POST", HOME, body, content_type="application/json")

    assert (reply.status, reply.errno) == (400, None)


@pytest.mark.parametrize("channel", ["x", "", "c0ffee"])
async def test_a_channel_that_is_no_uuid_is_refused(channel: str) -> None:
    reply = await ask(world(), "POST", HOME, {"token": TOKEN, "channelID": channel})

    assert (reply.status, reply.errno) == (400, None)


async def test_the_body_must_say_that_it_is_json() -> None:
    body = json.dumps({"token": TOKEN}).encode()
    refused = await world().ask("POST", HOME, body, content_type="text/plain")
    taken = await world().ask("POST", HOME, body, content_type="Application/JSON; charset=utf-8")

    assert (refused.status, refused.errno) == (400, None)
    assert taken.status == 200


async def test_a_body_over_the_limit_is_refused() -> None:
    body = {"token": TOKEN, "aps": {"x": "y" * 6000}}
    reply = await ask(world(), "POST", HOME, body)

    assert (reply.status, reply.errno) == (413, 104)


async def test_refused_registrations_leave_nothing_behind() -> None:
    here = world()
    for body in (
        {},
        {"token": "x"},
        {"token": TOKEN, "key": "x"},
        {"token": TOKEN, "channelID": 1},
    ):
        await ask(here, "POST", HOME, body)

    assert "add_user_agent" not in here.store.calls


# C-120, C-121


async def test_a_new_token_replaces_the_old_one() -> None:
    here = world()
    registered = await register(here)
    here.clock.advance(10)
    path = f"{HOME}/{registered['uaid']}"
    reply = await ask(here, "PUT", path, {"token": "device-token-2"}, registered["secret"])

    assert (reply.status, reply.body) == (200, b"")
    record = await record_of(here, registered)
    assert record.router_data == {"token": "device-token-2", "app_id": "app"}
    assert record.connected_at_ms == here.clock.now_ms()


@pytest.mark.parametrize(
    "authorization, message",
    [
        (None, "Invalid Local Auth missing auth header"),
        ("", "Invalid Local Auth missing auth token"),
        ("Bearer", "Invalid Local Auth missing auth token"),
        ("Bearer ", "Invalid Local Auth missing auth token"),
        ("Basic SECRET", "Invalid Local Auth missing auth token"),
        ("Bearer 00", "Invalid Local Auth incorrect auth token"),
        ("Bearer \xe4", "Invalid Local Auth incorrect auth token"),
    ],
)
@pytest.mark.parametrize(
    "call", ["PUT", "GET", "DELETE", "POST /subscription", "DELETE /subscription/x"]
)
async def test_without_the_secret_nothing_but_a_first_registration_is_served(
    call: str, authorization: str | None, message: str
) -> None:
    here = world()
    registered = await register(here)
    method, _, rest = call.partition(" ")
    headers = {} if authorization is None else {"authorization": authorization.encode("latin-1")}
    reply = await here.ask(method, f"{HOME}/{registered['uaid']}{rest}", b"", **headers)

    assert (reply.status, reply.errno, reply.message) == (401, 109, message)
    assert reply.headers["WWW-Authenticate"] == "Bearer"


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "webpush", "WebPush"])
@pytest.mark.parametrize("auth_key", ["first", "second"])
async def test_secrets_of_all_keys_are_accepted_under_both_schemes(
    scheme: str, auth_key: str
) -> None:
    here = world()
    registered = await register(here)
    plain_uaid = registered["uaid"].replace("-", "").encode()
    secret = hmac.new(auth_key.encode(), plain_uaid, hashlib.sha256).hexdigest()
    reply = await here.ask(
        "GET", f"{HOME}/{registered['uaid']}", authorization=f"{scheme} {secret}"
    )

    assert reply.status == 200


async def test_the_secret_of_another_device_is_not_accepted() -> None:
    here = world()
    one, other = await register(here), await register(here)
    reply = await ask(here, "GET", f"{HOME}/{one['uaid']}", secret=other["secret"])

    assert (reply.status, reply.errno) == (401, 109)


async def test_a_lost_race_asks_to_send_again() -> None:
    here = world()
    registered = await register(here)

    async def lose(_: UserAgent) -> bool:
        return False

    here.store.claim_route = lose  # type: ignore[method-assign]
    path = f"{HOME}/{registered['uaid']}"
    put = await ask(here, "PUT", path, {"token": "device-token-2"}, registered["secret"])
    got = await ask(here, "GET", path, secret=registered["secret"])

    assert (put.status, put.errno) == (503, None)
    assert got.status == 200  # somebody else has renewed it


# C-122


async def test_channels_are_listed_added_and_removed() -> None:
    here = world()
    registered = await register(here)
    path, secret = f"{HOME}/{registered['uaid']}", registered["secret"]
    added = await ask(here, "POST", f"{path}/subscription", {"channelID": CHANNEL}, secret)
    listed = await ask(here, "GET", path, secret=secret)
    removed = await ask(here, "DELETE", f"{path}/subscription/{CHANNEL}", secret=secret)
    again = await ask(here, "DELETE", f"{path}/subscription/{CHANNEL}", secret=secret)

    assert list(added.json) == ["channelID", "endpoint"]
    assert added.json["channelID"] == CHANNEL
    assert opened(here, added.json["endpoint"]).channel_id == parse_uuid(CHANNEL)
    assert listed.json == {
        "uaid": registered["uaid"],
        "channelIDs": sorted([CHANNEL, registered["channelID"]]),
    }
    assert (removed.status, removed.body) == (200, b"")
    assert (again.status, again.errno) == (410, 106)


async def test_a_channel_in_the_path_that_is_no_uuid_is_410() -> None:
    here = world()
    registered = await register(here)
    path = f"{HOME}/{registered['uaid']}/subscription/nonsense"
    reply = await ask(here, "DELETE", path, secret=registered["secret"])

    assert (reply.status, reply.errno) == (410, 106)


@pytest.mark.parametrize("body", [b"", b"{}", b"{", b'{"channelID":"x"}', b'{"channelID":1}'])
async def test_an_unusable_body_of_a_new_channel_is_as_none(body: bytes) -> None:
    here = world()
    registered = await register(here)
    reply = await here.ask(
        "POST",
        f"{HOME}/{registered['uaid']}/subscription",
        body,
        content_type="application/json",
        authorization=f"Bearer {registered['secret']}",
    )

    assert reply.status == 200
    assert is_canonical_dashed(reply.json["channelID"])
    assert len(await here.store.get_channels(uaid_of(registered))) == 2


async def test_a_new_channel_may_be_bound_to_a_key() -> None:
    here = world()
    registered = await register(here)
    path = f"{HOME}/{registered['uaid']}/subscription"
    body = {"key": here.sender.public_key}
    reply = await ask(here, "POST", path, body, registered["secret"])

    assert "/wpush/v2/" in reply.json["endpoint"]


async def test_a_device_has_so_many_channels_and_no_more() -> None:
    here = world(channels_max=2)
    registered = await register(here)
    path = f"{HOME}/{registered['uaid']}/subscription"
    replies = [await ask(here, "POST", path, {}, registered["secret"]) for _ in range(2)]

    assert [reply.status for reply in replies] == [200, 400]


async def test_asking_for_the_channels_renews_the_record() -> None:
    here = world()
    registered = await register(here)
    for _ in range(4):
        here.clock.advance(USER_AGENT_LIFETIME_S / 2)
        path = f"{HOME}/{registered['uaid']}"
        reply = await ask(here, "GET", path, secret=registered["secret"])

        assert reply.status == 200
    assert (await record_of(here, registered)).connected_at_ms == here.clock.now_ms()


# C-123, C-124


async def test_a_removed_device_is_gone_for_all_calls() -> None:
    here = world()
    registered = await register(here)
    path, secret = f"{HOME}/{registered['uaid']}", registered["secret"]
    removed = await ask(here, "DELETE", path, secret=secret)
    later = [
        await ask(here, "DELETE", path, secret=secret),
        await ask(here, "GET", path, secret=secret),
        await ask(here, "PUT", path, {"token": TOKEN}, secret),
        await ask(here, "POST", f"{path}/subscription", {}, secret),
        await ask(here, "DELETE", f"{path}/subscription/{CHANNEL}", secret=secret),
    ]
    posted = await here.post(registered["endpoint"].removeprefix(here.settings.url))

    assert (removed.status, removed.body) == (200, b"")
    assert [(reply.status, reply.errno) for reply in later] == [(410, 103)] * 5
    assert (posted.status, posted.errno) == (410, 106)


@pytest.mark.parametrize("uaid", ["nonsense", "0" * 31, "%20", "../x"])
async def test_a_uaid_in_the_path_that_cannot_be_read_is_410(uaid: str) -> None:
    reply = await ask(world(), "GET", f"{HOME}/{uaid.replace('/', '%20')}")

    assert (reply.status, reply.errno) == (410, 103)


async def test_a_user_agent_of_another_type_is_not_found() -> None:
    here = world()
    registered = await register(here)
    path = f"/v1/apns/app/registration/{registered['uaid']}"
    replies = [
        await ask(here, "GET", path, secret=registered["secret"]),
        await ask(here, "PUT", path, {"token": TOKEN}, registered["secret"]),
        await ask(here, "DELETE", path, secret=registered["secret"]),
    ]

    assert [(reply.status, reply.errno) for reply in replies] == [(410, 103)] * 3
    assert (await record_of(here, registered)).router_type == "fcm"


async def test_the_dialect_of_simplepush_does_not_change_answers_here() -> None:
    here = world(dialect="s")
    reply = await ask(here, "PUT", f"{HOME}/nonsense", {"token": TOKEN})

    assert (reply.status, reply.errno) == (410, 103)


# Paths, methods, origins, limits


@pytest.mark.parametrize(
    "path, allowed",
    [
        ("", "POST, OPTIONS"),
        ("/abc", "DELETE, GET, PUT, OPTIONS"),
        ("/abc/subscription", "POST, OPTIONS"),
        ("/abc/subscription/def", "DELETE, OPTIONS"),
    ],
)
async def test_another_method_of_a_known_path_is_405(path: str, allowed: str) -> None:
    reply = await world().ask("PATCH", HOME + path)

    assert reply.status == 405
    assert reply.headers["Allow"] == allowed


@pytest.mark.parametrize(
    "path",
    [
        "/v1/",
        "/v1/fcm",
        "/v1/fcm/app",
        f"{HOME}/",
        f"{HOME}/a/b",
        f"{HOME}/a/subscription/b/c",
        "/v1//app/registration",
    ],
)
async def test_other_paths_are_unknown(path: str) -> None:
    reply = await world().ask("POST", path)

    assert (reply.status, reply.body) == (404, b"")


async def test_a_web_page_may_register() -> None:
    reply = await world().ask(
        "POST",
        HOME,
        json.dumps({"token": TOKEN}).encode(),
        content_type="application/json",
        origin="https://app.example",
    )

    assert reply.status == 200
    assert reply.headers["Access-Control-Allow-Origin"] == "https://app.example"


async def test_new_devices_come_at_a_limited_rate() -> None:
    here = world(settings=Endpoint(rate_registrations=0.5, burst_registrations=2))
    replies: list[Reply] = []
    for _ in range(3):
        await ask(here, "POST", HOME, {"token": "bad"})  # a refused body does not count
        replies.append(await ask(here, "POST", HOME, {"token": TOKEN}))

    assert [reply.status for reply in replies] == [200, 200, 429]
    assert replies[2].headers["Retry-After"] == "2"

    here.clock.advance(2)
    assert (await ask(here, "POST", HOME, {"token": TOKEN})).status == 200


async def test_a_store_that_does_not_answer_is_503() -> None:
    here = world()
    registered = await register(here)
    here.store.failures["get_user_agent"] = StoreUnavailableError("no")
    path = f"{HOME}/{registered['uaid']}"
    reply = await ask(here, "GET", path, secret=registered["secret"])

    assert (reply.status, reply.errno) == (503, 201)
