"""Devices behind FCM, APNs and the stub: scenarios C-117 to C-130.

Real processes; the vendors are doubles that speak HTTP/2.
"""

import asyncio
import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.platform import BIN, Autoendpoint, Serve, clean_environment, variables
from tests.e2e.wire_clients import BODY, Answer, Vapid, accepted, b64url, http, post, user_agent
from tests.ports import free_ports
from tests.servers.http2_double import Fault, Said
from tests.servers.vendors import ApnsDouble, FcmDouble
from waystation.push.endpoint.bridges.apns import DEFAULT_APS

pytestmark = pytest.mark.e2e

TOKEN = "device-token-1"
CHANNEL = "c0ffee00-1234-4abc-8def-0123456789ab"
CRYPTO_KEY = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
AUTH_KEYS = "[newest, older]"
DAYS = 86_400
Registered = dict[str, Any]


class Bridged:
    """A server whose bridges lead to doubles."""

    def __init__(self, server: Serve | Autoendpoint, fcm: FcmDouble, apns: ApnsDouble) -> None:
        self.server = server
        self.fcm = fcm
        self.apns = apns

    @property
    def url(self) -> str:
        return self.server.endpoint_url

    async def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        secret: str | None = None,
        scheme: str = "Bearer",
    ) -> Answer:
        headers = {} if body is None else {"Content-Type": "application/json"}
        if secret is not None:
            headers["Authorization"] = f"{scheme} {secret}"
        content = b"" if body is None else json.dumps(body).encode()
        return await http(method, self.url + path, headers, content)

    async def register(
        self, *, kind: str = "fcm", app: str = "app", token: str = TOKEN, **more: object
    ) -> Registered:
        path = f"/v1/{kind}/{app}/registration"
        answer = await self.call("POST", path, {"token": token, **more})
        assert answer.status == 200, answer
        return answer.json

    async def of(
        self,
        device: Registered,
        method: str,
        rest: str = "",
        body: object = None,
        *,
        kind: str = "fcm",
        app: str = "app",
    ) -> Answer:
        """A call of that device, with its secret."""
        path = f"/v1/{kind}/{app}/registration/{device['uaid']}{rest}"
        return await self.call(method, path, body, secret=device["secret"])

    async def routers(self) -> dict[str, bool]:
        return (await http("GET", f"{self.url}/health")).json["routers"]


@asynccontextmanager
async def bridged(
    kind: str, directory: Path, apps: tuple[str, ...] = ("app",), **settings: object
) -> AsyncIterator[Bridged]:
    async with AsyncExitStack() as stack:
        fcm = await stack.enter_async_context(FcmDouble())
        apns = await stack.enter_async_context(ApnsDouble())
        given = {
            "fcm__credentials": fcm.credentials(*apps),
            "fcm__base_url": fcm.url,
            "apns__channels": apns.channels(),
            "apns__base_url": apns.url,
            "stub__enabled": True,
            **settings,
        }
        server: Serve | Autoendpoint
        if kind == "serve":
            server = Serve(directory, workers=2, push__auth_keys=AUTH_KEYS, **given)
        else:
            server = Autoendpoint(
                directory,
                port=free_ports(1),
                crypto_key=CRYPTO_KEY,
                auth_key=AUTH_KEYS,
                **given,
            )
        stack.enter_context(server)
        yield Bridged(server, fcm, apns)
        assert fcm.complaints == apns.complaints == []


@pytest.fixture(params=["serve", "autoendpoint"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
async def here(kind: str, data_dir: Path) -> AsyncIterator[Bridged]:
    async with bridged(kind, data_dir) as found:
        yield found


async def test_a_device_registers_and_is_reached(here: Bridged) -> None:
    """C-117"""
    device = await here.register()
    await accepted(device["endpoint"])
    ((token, android),) = here.fcm.taken

    assert list(device) == ["uaid", "channelID", "endpoint", "secret"]
    assert len(device["secret"]) == 64
    assert token == TOKEN
    assert android["data"] == {
        "chid": device["channelID"],
        "body": b64url(BODY),
        "con": "aes128gcm",
    }
    assert await here.routers() == {"apns": True, "fcm": True}


async def test_a_registration_may_bring_channel_and_key(here: Bridged) -> None:
    """C-118"""
    sender, stranger = Vapid(), Vapid()
    device = await here.register(channelID=CHANNEL, key=sender.key)

    assert device["channelID"] == CHANNEL
    assert "/wpush/v2/" in device["endpoint"]
    await accepted(device["endpoint"], vapid=sender)
    assert (await post(device["endpoint"], vapid=stranger)).error == (401, 109)
    assert len(here.fcm.taken) == 1


@pytest.mark.parametrize(
    "path, body, status, errno",
    [
        ("fcm/app", {"token": "1234567"}, 400, None),
        ("fcm/app", {"token": "1234 5678"}, 400, None),
        ("fcm/app", {}, 400, None),
        ("fcm/other", {"token": TOKEN}, 400, 106),
        ("apns/other", {"token": TOKEN}, 400, None),
        ("gcm/app", {"token": TOKEN}, 400, 108),
        ("adm/app", {"token": TOKEN}, 400, 108),
        ("nothing/app", {"token": TOKEN}, 400, 108),
    ],
)
async def test_bad_tokens_apps_and_types_are_refused(
    here: Bridged, path: str, body: object, status: int, errno: int | None
) -> None:
    """C-119"""
    answer = await here.call("POST", f"/v1/{path}/registration", body)

    assert answer.error == (status, errno)


async def test_a_new_device_token_needs_the_secret(here: Bridged) -> None:
    """C-120"""
    device = await here.register()
    path = f"/v1/fcm/app/registration/{device['uaid']}"
    body = {"token": "device-token-2"}

    assert (await here.call("PUT", path, body)).error == (401, 109)
    assert (await here.call("PUT", path, body, secret="0" * 64)).error == (401, 109)
    changed = await here.call("PUT", path, body, secret=device["secret"], scheme="webpush")
    await accepted(device["endpoint"])

    assert (changed.status, changed.body) == (200, b"")
    assert [token for token, _ in here.fcm.taken] == ["device-token-2"]


async def test_a_secret_of_the_second_key_is_accepted(here: Bridged) -> None:
    """C-121"""
    device = await here.register()
    plain_uaid = device["uaid"].replace("-", "").encode()
    newest, older = (
        hmac.new(key, plain_uaid, hashlib.sha256).hexdigest() for key in (b"newest", b"older")
    )

    assert device["secret"] == newest
    device["secret"] = older
    assert (await here.of(device, "GET")).status == 200


async def test_channels_are_listed_added_and_removed(here: Bridged) -> None:
    """C-122"""
    device = await here.register()
    added = (await here.of(device, "POST", "/subscription", {"channelID": CHANNEL})).json
    listed = (await here.of(device, "GET")).json
    await accepted(added["endpoint"])

    assert added["channelID"] == CHANNEL
    assert listed["uaid"] == device["uaid"]
    assert set(listed["channelIDs"]) == {CHANNEL, device["channelID"]}
    assert here.fcm.taken[0][1]["data"]["chid"] == CHANNEL

    removed = await here.of(device, "DELETE", f"/subscription/{CHANNEL}")
    again = await here.of(device, "DELETE", f"/subscription/{CHANNEL}")

    assert (removed.status, removed.body) == (200, b"")
    assert again.error == (410, 106)
    assert (await post(added["endpoint"])).error == (410, 106)  # T-15
    await accepted(device["endpoint"])


async def test_a_removed_device_is_gone_for_good(here: Bridged) -> None:
    """C-123"""
    device = await here.register()
    removed = await here.of(device, "DELETE")

    assert (removed.status, removed.body) == (200, b"")
    for method, rest, body in (
        ("GET", "", None),
        ("PUT", "", {"token": TOKEN}),
        ("DELETE", "", None),
        ("POST", "/subscription", {}),
        ("DELETE", f"/subscription/{device['channelID']}", None),
    ):
        assert (await here.of(device, method, rest, body)).error == (410, 103)
    assert (await post(device["endpoint"])).error == (410, 106)
    assert here.fcm.taken == []


async def test_a_uaid_that_cannot_be_read_is_410(here: Bridged) -> None:
    """C-124"""
    for method in ("GET", "PUT", "DELETE"):
        answer = await here.call(method, "/v1/fcm/app/registration/nonsense", secret="0" * 64)

        assert answer.error == (410, 103)


async def test_a_device_the_vendor_does_not_know_is_forgotten(here: Bridged) -> None:
    """C-125"""
    android = await here.register()
    phone = await here.register(kind="apns", app="release", token="ab" * 32)
    here.fcm.gone.add(TOKEN)
    here.apns.gone.add("ab" * 32)

    assert (await post(android["endpoint"])).error == (410, 106)
    assert (await post(phone["endpoint"])).error == (410, 106)
    assert (await here.of(android, "GET")).error == (410, 103)
    gone = await here.of(phone, "GET", kind="apns", app="release")
    assert gone.error == (410, 103)


async def test_each_failure_of_a_vendor_has_its_answer(kind: str, data_dir: Path) -> None:
    """C-126. Each on an app of its own, because a vendor that fails is asked less often."""
    said: dict[str, tuple[Said | Fault, int | None]] = {
        "auth": (Said.of(401, {}), 901),
        "timeout": (Fault.HANG, 903),
        "trouble": (Said.of(500, {}), None),
        "no-json": (Said(200, b"<html>"), None),
    }
    async with bridged(kind, data_dir, tuple(said), fcm__timeout_s=1.0) as here:
        for app, (answer, errno) in said.items():
            here.fcm.fault = lambda _: None
            device = await here.register(app=app)
            here.fcm.fault = lambda _, answer=answer: answer

            assert (await post(device["endpoint"])).error == (502, errno)
            assert (await here.of(device, "GET", app=app)).status == 200
        # Each worker tells of itself, and any of them may answer.
        assert not all([(await here.routers())["fcm"] for _ in range(50)])


async def test_a_vendor_that_cannot_be_reached_is_502(kind: str, data_dir: Path) -> None:
    """C-126"""
    nobody = f"http://127.0.0.1:{free_ports(1)}"
    async with bridged(kind, data_dir, fcm__base_url=nobody, apns__base_url=nobody) as here:
        android = await here.register()
        phone = await here.register(kind="apns", app="release", token="ab" * 32)

        assert (await post(android["endpoint"])).error == (502, 902)
        assert (await post(phone["endpoint"])).error == (502, 902)


async def test_ttls_are_fitted_to_the_vendor(here: Bridged) -> None:
    """C-127"""
    device = await here.register()
    short = await accepted(device["endpoint"], ttl=10)
    long = await accepted(device["endpoint"], ttl=60 * DAYS)

    assert short.headers["ttl"] == "10"
    assert long.headers["ttl"] == str(30 * DAYS)
    assert [android["ttl"] for _, android in here.fcm.taken] == ["60s", f"{28 * DAYS}s"]


async def test_bridges_carry_less_than_a_websocket(data_dir: Path) -> None:
    """C-128"""
    body = b"x" * 4000
    async with bridged("serve", data_dir) as here:
        assert isinstance(here.server, Serve)
        device = await here.register()
        phone = await here.register(kind="apns", app="release", token="ab" * 32)

        for bridged_endpoint in (device["endpoint"], phone["endpoint"]):
            refused = await post(bridged_endpoint, body)
            assert refused.error == (413, 104)
            assert "constrained device" in refused.json["message"]
            await accepted(bridged_endpoint, body[:2700])
        async with user_agent(here.server.ws_url) as agent:
            await accepted(await agent.subscribe(), body)


async def test_apns_sends_the_default_aps_or_the_registered_one(here: Bridged) -> None:
    """C-129"""
    mine = {"alert": {"title": "t", "nested": [1, {"x": None}]}, "mutable-content": 1}
    one = await here.register(kind="apns", app="release", token="aa" * 32)
    other = await here.register(kind="apns", app="release", token="bb" * 32, aps=mine)
    await accepted(one["endpoint"])
    await accepted(other["endpoint"])
    refused = await here.call(
        "POST", "/v1/apns/release/registration", {"token": "cc" * 32, "aps": "text"}
    )

    assert [payload["aps"] for _, payload in here.apns.taken] == [DEFAULT_APS, mine]
    assert here.apns.taken[0][1]["body"] == b64url(BODY)
    assert refused.error == (400, None)


async def test_the_stub_succeeds_and_fails_on_demand(here: Bridged) -> None:
    """C-130"""
    good = await here.register(kind="stub", app="success", token="success")
    bad = await here.register(kind="stub", app="error", token="success")
    unknown = await here.call("POST", "/v1/stub/other/registration", {"token": "success"})
    token = await here.call("POST", "/v1/stub/success/registration", {"token": "failure"})

    await accepted(good["endpoint"])
    assert (await post(bad["endpoint"])).error == (500, None)
    assert unknown.status == token.status == 400


async def test_no_id_token_secret_or_payload_reaches_the_log(kind: str, data_dir: Path) -> None:
    """Also where a vendor quotes what it was sent."""
    phone_token, body = "5ecre7" * 10, b"the payload of a message"
    said: tuple[Said | Fault, ...] = (
        Said.of(500, {"error": {"status": "INTERNAL", "message": f"{TOKEN} {b64url(body)}"}}),
        Said.of(400, {"reason": "BadMessageId", "quoted": f"{phone_token} {b64url(body)}"}),
        Said(404, f"<html>{TOKEN}".encode()),
        Fault.RESET,
        Fault.CUT,
        Said.of(401, {}),
    )
    async with bridged(kind, data_dir) as here:
        android = await here.register()
        phone = await here.register(kind="apns", app="release", token=phone_token)
        for answer in said:
            here.fcm.fault = here.apns.fault = lambda _, answer=answer: answer
            for device in (android, phone):
                assert (await post(device["endpoint"], body)).status == 502
        await here.call("PUT", f"/v1/fcm/app/registration/{android['uaid']}", secret="0" * 64)
        await here.of(android, "PUT", "", {"token": "no"})
        here.fcm.fault = here.apns.fault = lambda _: None
        here.apns.gone.add(phone_token)
        await post(phone["endpoint"], body)
        here.server.stop()
        log = "".join([*here.server.out, *here.server.err])

    assert "bridge.failing" in log
    for device in (android, phone):
        for name in ("uaid", "channelID", "secret"):
            assert device[name] not in log
            assert device[name].replace("-", "") not in log
        assert device["endpoint"].rpartition("/")[2] not in log
    for text in (TOKEN, phone_token, body.decode(), b64url(body), "PRIVATE KEY", "access-"):
        assert text not in log


async def test_registrations_outlive_a_restart(here: Bridged) -> None:
    device = await here.register()
    here.server.restart()
    await accepted(device["endpoint"])

    assert (await here.of(device, "GET")).json["channelIDs"] == [device["channelID"]]


async def test_a_bridge_that_is_configured_no_more_keeps_its_devices(
    kind: str, data_dir: Path
) -> None:
    async with bridged(kind, data_dir) as here:
        device = await here.register()
        here.server.stop()
        here.server.change(fcm__credentials="", stub__enabled=False)
        here.server.start()

        assert (await post(device["endpoint"])).error == (400, 106)
        assert (await here.of(device, "GET")).status == 200
        assert await here.routers() == {"apns": True, "fcm": False}


async def test_doctor_tells_of_each_app_by_a_dry_run(data_dir: Path) -> None:
    async with FcmDouble() as fcm, ApnsDouble() as apns:
        env = variables(
            "WAYSTATION_",
            {
                "fcm__credentials": fcm.credentials("one", "two"),
                "fcm__base_url": fcm.url,
                "apns__channels": apns.channels(),
                "apns__base_url": apns.url,
            },
        )
        good = await _doctor(data_dir, env)
        fcm.fault = lambda _: Said.of(401, {})
        bad = await _doctor(data_dir, env)

    for app in ("fcm one", "fcm two", "apns release"):
        assert f"{app}: the credentials are accepted" in good
    assert "fcm one: FCM refused the access token" in bad
    assert fcm.taken == apns.taken == []


async def _doctor(data_dir: Path, env: dict[str, str]) -> str:
    """Its report; other findings than those of bridges may fail on this machine."""
    process = await asyncio.create_subprocess_exec(
        BIN / "waystation",
        "doctor",
        "--data-dir",
        data_dir,
        env=clean_environment() | env,
        stdout=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        out, _ = await process.communicate()
    return out.decode()
