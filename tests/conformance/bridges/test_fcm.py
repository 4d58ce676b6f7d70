"""The FCM bridge against a double that verifies what it gets (webpush §7.2)."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from tests.conformance.bridges.kit import DASHED, OwnTime, notification
from tests.servers.http2_double import Asked, Fault, Said
from tests.servers.vendors import FcmDouble
from tests.unit.waiting import until
from waystation.base.settings import SettingsError
from waystation.net.http2.client import Http2Clients
from waystation.push.endpoint.bridges.fcm import FcmBridge, read_credentials
from waystation.push.errors import (
    BridgeAuthError,
    BridgeConnectError,
    BridgeError,
    BridgeFailedError,
    BridgeGoneError,
    BridgePayloadTooLargeError,
    BridgeTimeoutError,
    InvalidRouterTokenError,
    UnknownAppError,
)
from waystation.push.settings import Fcm

DATA = {"token": "device-token-1", "app_id": "app"}


@asynccontextmanager
async def bridged(**settings: Any) -> AsyncIterator[tuple[FcmDouble, FcmBridge, OwnTime]]:
    clock = OwnTime()
    async with FcmDouble() as double:
        clients = Http2Clients(asyncio.get_running_loop())
        given = {"credentials": double.credentials(), "base_url": double.url, **settings}
        bridge = FcmBridge(Fcm(**given), clients=clients, clock=clock, log=structlog.get_logger())
        try:
            yield double, bridge, clock
        finally:
            await bridge.close()
            await clients.close()
    assert double.complaints == []


async def test_a_message_arrives_as_data_with_its_ttl() -> None:
    async with bridged() as (double, bridge, _):
        assert await bridge.send(DATA, notification()) == 200

        ((token, android),) = double.taken
        assert token == "device-token-1"
        assert android == {
            "ttl": "3600s",
            "data": {"chid": DASHED, "body": "AbC_", "con": "aes128gcm"},
        }


async def test_a_message_without_a_body_has_no_headers_either() -> None:
    async with bridged() as (double, bridge, _):
        await bridge.send(DATA, notification(data=None, headers=None, reliability_id="r1"))

        assert double.taken[0][1]["data"] == {"chid": DASHED, "rid": "r1"}


@pytest.mark.parametrize("ttl_s, told", [(10, "60s"), (5_184_000, "2419200s")])
async def test_the_ttl_is_brought_into_the_vendors_range(ttl_s: int, told: str) -> None:
    """C-127."""
    async with bridged() as (double, bridge, _):
        await bridge.send(DATA, notification(ttl_s=ttl_s))

        assert double.taken[0][1]["ttl"] == told


async def test_one_token_and_one_connection_serve_many_messages() -> None:
    async with bridged() as (double, bridge, _):
        sends = (bridge.send(DATA, notification()) for _ in range(100))
        assert await asyncio.gather(*sends) == [200] * 100

        assert len(double.access_tokens) == 1
        assert double.http.connections_seen == 1, "the token service has the same address here"


async def test_a_token_is_renewed_before_it_ends() -> None:
    async with bridged() as (double, bridge, clock):
        await bridge.send(DATA, notification())
        clock.ahead_s = 3600 - 200  # less than RENEW_BEFORE_S is left
        await bridge.send(DATA, notification())
        await asyncio.sleep(0.2)
        await bridge.send(DATA, notification())

        assert len(double.access_tokens) == 2
        assert len(double.taken) == 3


async def test_a_token_that_is_refused_early_is_made_anew_once() -> None:
    async with bridged() as (double, bridge, _):
        await bridge.send(DATA, notification())
        double.access_tokens.append("revoked-all-before")
        await bridge.send(DATA, notification())

        assert len(double.taken) == 2


async def test_a_device_that_is_unknown_is_gone() -> None:
    """C-125."""
    async with bridged() as (double, bridge, _):
        double.gone.add("device-token-1")
        with pytest.raises(BridgeGoneError):
            await bridge.send(DATA, notification())

        assert bridge.conditions()[0].ok, "that says nothing of the app"


@pytest.mark.parametrize(
    "fault, error",
    [
        (Said.of(500, {"error": {"status": "INTERNAL"}}), BridgeFailedError),
        (Said.of(429, {"error": {"status": "QUOTA_EXCEEDED"}}), BridgeFailedError),
        (Said.of(400, {"error": {"status": "INVALID_ARGUMENT"}}), BridgeError),
        (Said.of(403, {"error": {"status": "PERMISSION_DENIED"}}), BridgeError),
        pytest.param(Said(200, b"<html>"), BridgeError, id="200 with HTML"),
        pytest.param(Said(200), BridgeError, id="200 without a body"),
        pytest.param(Said(200, b'{"name":"\xff"}'), BridgeError, id="200 without UTF-8"),
        pytest.param(Said(200, b'{"a":' + b"[" * 9000), BridgeError, id="200 without an end"),
        pytest.param(
            Said(500, b'{"error":{"status":"\xff"}}'), BridgeFailedError, id="500 without UTF-8"
        ),
        pytest.param(Said(404, b"<html>"), BridgeError, id="404 of no FCM"),
        pytest.param(Said(404), BridgeError, id="404 without a body"),
        (Said.of(401, {"error": {"status": "UNAUTHENTICATED"}}), BridgeAuthError),
        (Fault.HANG, BridgeTimeoutError),
        (Fault.CUT, BridgeConnectError),
        (Fault.RESET, BridgeConnectError),
    ],
    ids=lambda value: str(getattr(value, "status", value)),
)
async def test_what_the_vendor_does_has_its_error(fault: Any, error: type[Exception]) -> None:
    """C-126."""
    async with bridged(timeout_s=0.5) as (double, bridge, _):
        double.fault = lambda _: fault
        with pytest.raises(error) as raised:
            await bridge.send(DATA, notification())

        assert type(raised.value) is error
        assert double.taken == []


async def test_refused_credentials_are_told_logged_once_and_seen() -> None:
    async with bridged() as (double, bridge, _):
        double.token_fault = lambda _: Said.of(400, {"error": "invalid_grant"})
        with capture_logs() as lines:
            for _ in range(3):
                with pytest.raises(BridgeAuthError):
                    await bridge.send(DATA, notification())

        (condition,) = bridge.conditions()
        assert [line["event"] for line in lines] == ["bridge.failing"]
        assert (condition.ok, condition.app_id) == (False, "app")
        assert not (await bridge.check())[0].ok


@pytest.mark.parametrize("body", [b"<html>", b"{}", b'{"access_token":"\xff"}', b""])
async def test_a_token_service_that_answers_without_a_token_is_502(body: bytes) -> None:
    async with bridged() as (double, bridge, _):
        double.token_fault = lambda _: Said(200, body)
        with pytest.raises(BridgeError) as raised:
            await bridge.send(DATA, notification())

        assert type(raised.value) is BridgeError


async def test_a_401_for_a_device_of_another_network_blames_no_credentials_of_ours() -> None:
    """A token of FCM for iOS or the web, where the project has no key of Apple's or for the web."""
    details = [{"@type": "x", "errorCode": "THIRD_PARTY_AUTH_ERROR"}]
    refused = Said.of(401, {"error": {"status": "UNAUTHENTICATED", "details": details}})
    async with bridged() as (double, bridge, clock):
        double.fault = lambda asked: refused if b"device-token-1" in asked.body else None
        for _ in range(5):
            clock.ahead_s += 1
            with pytest.raises(BridgeError) as raised:
                await bridge.send(DATA, notification())
            assert type(raised.value) is BridgeError

        assert await bridge.send({**DATA, "token": "device-token-2"}, notification()) == 200
        assert len(double.access_tokens) == 1
        assert bridge.conditions()[0].ok


async def test_after_a_pause_one_message_tries_and_the_others_do_not_wait_for_it() -> None:
    """Else all senders would wait for the timeout after each pause of a vendor that hangs."""
    asked: list[str] = []

    def hang(request: Asked) -> Fault:
        asked.append(request.path)
        return Fault.HANG

    async with bridged(timeout_s=0.3) as (double, bridge, clock):
        double.fault = hang
        for _ in range(3):
            clock.ahead_s += 0.1
            with pytest.raises(BridgeTimeoutError):
                await bridge.send(DATA, notification())
        clock.ahead_s += 60
        sends = (bridge.send(DATA, notification()) for _ in range(20))
        ended = await asyncio.gather(*sends, return_exceptions=True)
        assert {type(end) for end in ended} == {BridgeTimeoutError}
        assert len(asked) == 4

        clock.ahead_s += 120
        trial = asyncio.create_task(bridge.send(DATA, notification()))
        await until(lambda: len(asked) == 5)
        trial.cancel()
        await asyncio.wait([trial])
        double.fault = lambda _: None
        assert await bridge.send(DATA, notification()) == 200
        sends = (bridge.send(DATA, notification()) for _ in range(20))
        assert await asyncio.gather(*sends) == [200] * 20


async def test_a_vendor_that_fails_now_and_then_does_not_fill_the_log() -> None:
    trouble, bad = Said.of(500, {}), [True]
    async with bridged() as (double, bridge, clock):
        double.fault = lambda _: trouble if bad[0] else None
        with capture_logs() as lines:
            for _ in range(20):
                bad[0] = not bad[0]
                clock.ahead_s += 1
                with contextlib.suppress(BridgeFailedError):
                    await bridge.send(DATA, notification())
        flapping = [line["event"] for line in lines]
        bad[0] = True
        with capture_logs() as lines:
            for _ in range(3):  # it begins anew, and lasts
                clock.ahead_s += 35
                with pytest.raises(BridgeFailedError):
                    await bridge.send(DATA, notification())
        lasting = [line["event"] for line in lines]

    assert flapping == ["bridge.failing", "bridge.working"]
    assert lasting == ["bridge.failing"]


async def test_a_vendor_that_fails_is_asked_less_often_and_found_working_again() -> None:
    asked: list[str] = []

    def fail(request: Asked) -> Said:
        asked.append(request.path)
        return Said.of(503, {"error": {"status": "UNAVAILABLE"}})

    async with bridged() as (double, bridge, clock):
        double.fault = fail
        for _ in range(8):
            clock.ahead_s += 0.1
            with pytest.raises(BridgeFailedError):
                await bridge.send(DATA, notification())
        assert len(asked) == 3
        for _ in range(4):  # each pause is twice as long as the last
            clock.ahead_s += 1.5
            with pytest.raises(BridgeFailedError):
                await bridge.send(DATA, notification())
        assert len(asked) < 7
        double.fault = lambda _: None
        clock.ahead_s += 60
        assert await bridge.send(DATA, notification()) == 200

        assert bridge.conditions()[0].ok


async def test_a_connection_that_breaks_under_many_messages_makes_no_pause() -> None:
    async with bridged() as (double, bridge, _):
        await bridge.send(DATA, notification())
        left = [Fault.CUT]
        double.fault = lambda _: left.pop() if left else None
        sends = (bridge.send(DATA, notification()) for _ in range(50))
        ended = await asyncio.gather(*sends, return_exceptions=True)

        assert {type(end) for end in ended} <= {int, BridgeConnectError}
        assert sum(end == 200 for end in ended) < 50
        assert await bridge.send(DATA, notification()) == 200


async def test_the_pause_that_the_vendor_asks_for_is_kept() -> None:
    async with bridged() as (double, bridge, clock):
        double.fault = lambda _: Said.of(429, {}, ("retry-after", "30"))
        with pytest.raises(BridgeFailedError):
            await bridge.send(DATA, notification())
        double.fault = lambda _: None
        clock.ahead_s = 20
        with pytest.raises(BridgeFailedError):
            await bridge.send(DATA, notification())
        clock.ahead_s = 31

        assert await bridge.send(DATA, notification()) == 200


@pytest.mark.parametrize(
    "violation",
    [
        {"subject": "device:device-token-1", "description": "quota"},
        {"subject": "QUOTA_EXCEEDED", "description": "Device message rate exceeded"},
    ],
    ids=["by its subject", "by its description"],
)
async def test_a_device_that_gets_too_many_messages_stops_no_other(
    violation: dict[str, str],
) -> None:
    """Any sender may post to its own device until FCM says 429 of it."""
    details = [
        {"@type": "type.googleapis.com/google.firebase.fcm.v1.FcmError", "errorCode": "X"},
        {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [violation]},
    ]
    error = {"error": {"status": "RESOURCE_EXHAUSTED", "details": details}}
    busy = Said.of(429, error, ("retry-after", "600"))
    async with bridged() as (double, bridge, clock):
        double.fault = lambda asked: busy if b"device-token-1" in asked.body else None
        for _ in range(5):
            clock.ahead_s += 1
            with pytest.raises(BridgeError, match="RESOURCE_EXHAUSTED") as raised:
                await bridge.send(DATA, notification())
            assert type(raised.value) is BridgeError

        assert await bridge.send({**DATA, "token": "device-token-2"}, notification()) == 200
        assert bridge.conditions()[0].ok


async def test_a_long_pause_that_the_vendor_asks_for_is_kept_as_well() -> None:
    async with bridged() as (double, bridge, clock):
        double.fault = lambda _: Said.of(503, {}, ("retry-after", "600"))
        with pytest.raises(BridgeFailedError):
            await bridge.send(DATA, notification())
        double.fault = lambda _: None
        clock.ahead_s = 590
        with pytest.raises(BridgeFailedError):
            await bridge.send(DATA, notification())
        clock.ahead_s = 601

        assert await bridge.send(DATA, notification()) == 200


async def test_a_path_in_the_base_url_stays_in_front() -> None:
    async with FcmDouble() as double:
        seen: list[str] = []

        def answer(asked: Asked) -> Said:
            seen.append(asked.path)
            token = {"access_token": "t", "expires_in": 3600}
            return Said.of(200, token if asked.path == "/token" else {"name": "n"})

        double.http.answer = answer
        clients = Http2Clients(asyncio.get_running_loop())
        settings = Fcm(credentials=double.credentials(), base_url=f"{double.url}/proxy/fcm/")
        log = structlog.get_logger()
        bridge = FcmBridge(settings, clients=clients, clock=OwnTime(), log=log)
        await bridge.send(DATA, notification())
        await bridge.close()
        await clients.close()

    assert seen == ["/token", "/proxy/fcm/v1/projects/test-project/messages:send"]


async def test_a_message_too_large_for_the_device_is_not_sent() -> None:
    """C-128."""
    async with bridged() as (double, bridge, _):
        with pytest.raises(BridgePayloadTooLargeError, match="bytes too many"):
            await bridge.send(DATA, notification(data="A" * 4096))

        assert double.taken == []


async def test_records_of_gcms_form_name_their_app_too() -> None:
    async with bridged() as (double, bridge, _):
        await bridge.send({"token": "device-token-1", "creds": {"senderID": "app"}}, notification())

        assert len(double.taken) == 1


@pytest.mark.parametrize("data", [{}, {"token": "device-token-1"}, {"token": 5, "app_id": "app"}])
async def test_a_record_that_lacks_something_is_gone(data: dict[str, Any]) -> None:
    async with bridged() as (_, bridge, _):
        with pytest.raises(BridgeGoneError):
            await bridge.send(data, notification())


async def test_only_configured_apps_and_possible_tokens_are_registered() -> None:
    """C-119."""
    async with bridged() as (_, bridge, _):
        assert bridge.registered("app", "device-token-1", None) == DATA
        with pytest.raises(UnknownAppError):
            bridge.registered("other", "device-token-1", None)
        for token in ("short", "has a blank in it"):
            with pytest.raises(InvalidRouterTokenError):
                bridge.registered("app", token, None)
        with pytest.raises(UnknownAppError):
            await bridge.send({**DATA, "app_id": "other"}, notification())


async def test_the_dry_run_delivers_nothing() -> None:
    async with bridged() as (double, bridge, _):
        assert [condition.ok for condition in await bridge.check()] == [True]
        assert double.taken == []


@pytest.mark.parametrize(
    "text, complaint",
    [
        ("nope", "not JSON"),
        ('{"a": {"project_id": "p"}}', "not JSON"),
        ('{"a": {"project_id": "p", "credential": "/missing/file"}}', "cannot be read"),
        ('{"a": {"project_id": "p", "credential": "{}"}}', "not a service account"),
        (
            json.dumps(
                {
                    "a": {
                        "project_id": "p",
                        "credential": json.dumps({"client_email": "e", "private_key": "k"}),
                    }
                }
            ),
            "private_key",
        ),
    ],
)
def test_credentials_that_cannot_be_used_are_named(text: str, complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint):
        read_credentials(text)


def test_a_credential_that_is_no_path_is_not_shown() -> None:
    """Somebody gave the key itself, or the JSON in base64."""
    for secret in ("QUJD" * 100, "MIIEvQIBADANBgkq\nhkiG9w0BAQEFAASC"):
        text = json.dumps({"a": {"project_id": "p", "credential": secret}})
        with pytest.raises(SettingsError, match="app a") as raised:
            read_credentials(text)

        assert secret[:12] not in str(raised.value)
