"""The APNs bridge against a double that verifies what it gets (webpush §7.3)."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from structlog.testing import capture_logs

from tests.certificates import self_signed
from tests.conformance.bridges.kit import DASHED, OwnTime, notification
from tests.servers.http2_double import Asked, Fault, Said
from tests.servers.vendors import ApnsDouble, pem_of
from waystation.base.settings import SettingsError
from waystation.push.endpoint.bridges.apns import DEFAULT_APS, ApnsBridge
from waystation.push.errors import (
    BadApsError,
    BridgeAuthError,
    BridgeConnectError,
    BridgeError,
    BridgeFailedError,
    BridgeGoneError,
    BridgePayloadTooLargeError,
    BridgeTimeoutError,
    UnknownChannelError,
)
from waystation.push.model import ChannelId, Urgency
from waystation.push.settings import Apns

DATA = {"token": "a1b2c3d4e5f6", "rel_channel": "release"}


def bridge_of(clock: OwnTime, **settings: Any) -> ApnsBridge:
    loop = asyncio.get_running_loop()
    return ApnsBridge(Apns(**settings), loop=loop, clock=clock, log=structlog.get_logger())


@asynccontextmanager
async def bridged(
    *, streams_max: int = 100, **settings: Any
) -> AsyncIterator[tuple[ApnsDouble, ApnsBridge, OwnTime]]:
    clock = OwnTime()
    async with ApnsDouble(streams_max=streams_max) as double:
        bridge = bridge_of(
            clock, **{"channels": double.channels(), "base_url": double.url, **settings}
        )
        try:
            yield double, bridge, clock
        finally:
            await bridge.close()
    assert double.complaints == []


async def test_a_message_arrives_with_payload_topic_priority_and_expiry() -> None:
    async with bridged() as (double, bridge, _):
        assert await bridge.send(DATA, notification()) == 200

        ((token, taken),) = double.taken
        head = taken.pop("headers")
        assert token == "a1b2c3d4e5f6"
        assert taken == {
            "aps": DEFAULT_APS,
            "chid": DASHED,
            "ver": "gAAAAAB",
            "body": "AbC_",
            "con": "aes128gcm",
        }
        assert head["apns-topic"] == "com.mozilla.org.release"
        assert head["apns-priority"] == "10"
        assert head["apns-push-type"] == "alert"
        assert head["apns-expiration"] == str(1_700_000_000 + 3600)
        assert "apns-collapse-id" not in head


async def test_a_clients_own_aps_replaces_the_default() -> None:
    """C-129."""
    async with bridged() as (double, bridge, _):
        data = bridge.registered("release", "a1b2c3d4e5f6", {"content-available": 1})
        await bridge.send(data, notification())

        taken = double.taken[0][1]
        assert taken["aps"] == {"content-available": 1}
        assert taken["headers"]["apns-push-type"] == "background"
        assert taken["headers"]["apns-priority"] == "5", "Apple refuses 10 for what shows nothing"


@pytest.mark.parametrize("aps", ["text", 5, ["list"], True])
async def test_an_aps_that_is_no_object_is_refused(aps: object) -> None:
    """C-129."""
    async with bridged() as (_, bridge, _):
        with pytest.raises(BadApsError):
            bridge.registered("release", "a1b2c3d4e5f6", aps)
        with pytest.raises(BadApsError):
            await bridge.send({**DATA, "aps": aps}, notification())


async def test_topics_collapse_within_their_subscription_only() -> None:
    other = ChannelId(bytes(16))
    async with bridged() as (double, bridge, _):
        for changes in ({}, {}, {"channel_id": other}):
            await bridge.send(DATA, notification(topic="Inbox", **changes))

        ids = [taken["headers"]["apns-collapse-id"] for _, taken in double.taken]
        assert ids[0] == ids[1] != ids[2]


@pytest.mark.parametrize(
    "urgency, priority",
    [
        (Urgency.VERY_LOW, "5"),
        (Urgency.LOW, "5"),
        (Urgency.NORMAL, "10"),
        (Urgency.HIGH, "10"),
    ],
)
async def test_a_low_urgency_saves_power(urgency: Urgency, priority: str) -> None:
    async with bridged() as (double, bridge, _):
        await bridge.send(DATA, notification(urgency=urgency))

        assert double.taken[0][1]["headers"]["apns-priority"] == priority


async def test_one_connection_and_one_token_serve_all_within_the_streams_allowed() -> None:
    async with bridged(streams_max=5) as (double, bridge, _):
        sends = (bridge.send(DATA, notification()) for _ in range(200))
        assert await asyncio.gather(*sends) == [200] * 200

        assert double.http.connections_seen == bridge.connections == 1
        assert double.http.most_streams <= 5
        assert len(double.proofs) == 1


async def test_the_provider_token_is_renewed_within_the_hour() -> None:
    async with bridged() as (double, bridge, clock):
        await bridge.send(DATA, notification())
        clock.ahead_s = 51 * 60
        await bridge.send(DATA, notification())

        assert len(double.proofs) == 2


async def test_a_token_that_apple_calls_expired_is_made_anew_once() -> None:
    async with bridged() as (double, bridge, _):
        await bridge.send(DATA, notification())
        double.expired |= double.proofs
        await bridge.send(DATA, notification())

        assert len(double.taken) == 2


@pytest.mark.parametrize("reason", ["Unregistered", "BadDeviceToken"])
async def test_a_device_that_is_unknown_is_gone(reason: str) -> None:
    """C-125."""
    status = 410 if reason == "Unregistered" else 400
    async with bridged() as (double, bridge, _):
        double.fault = lambda _: Said.of(status, {"reason": reason})
        with pytest.raises(BridgeGoneError):
            await bridge.send(DATA, notification())

        assert bridge.conditions()[0].ok


@pytest.mark.parametrize(
    "fault, error",
    [
        (Said.of(403, {"reason": "BadCertificate"}), BridgeAuthError),
        (Said.of(400, {"reason": "DeviceTokenNotForTopic"}), BridgeError),
        (Said.of(429, {"reason": "TooManyRequests"}), BridgeError),
        (Said.of(413, {"reason": "PayloadTooLarge"}), BridgePayloadTooLargeError),
        (Said.of(500, {"reason": "InternalServerError"}), BridgeFailedError),
        (Said(503), BridgeFailedError),
        pytest.param(Said(400, b'{"reason":"\xff"}'), BridgeError, id="400 without UTF-8"),
        (Fault.HANG, BridgeTimeoutError),
        (Fault.CUT, BridgeConnectError),
    ],
    ids=lambda value: str(getattr(value, "status", value)),
)
async def test_what_the_vendor_does_has_its_error(fault: Any, error: type[Exception]) -> None:
    """C-126."""
    async with bridged(request_timeout_s=0.5) as (double, bridge, _):
        double.fault = lambda _: fault
        with pytest.raises(error) as raised:
            await bridge.send(DATA, notification())

        assert type(raised.value) is error


async def test_messages_around_a_goaway_are_all_taken_once() -> None:
    asked: list[str] = []

    def go(request: Asked) -> tuple[Fault, Said] | None:
        asked.append(request.path)
        return (Fault.GOAWAY_AFTER, Said(200)) if len(asked) % 25 == 0 else None

    async with bridged(streams_max=10) as (double, bridge, _):
        double.fault = go
        sends = (bridge.send({**DATA, "token": f"device-{n}"}, notification()) for n in range(200))
        assert await asyncio.gather(*sends) == [200] * 200

        assert sorted(token for token, _ in double.taken) == sorted(
            f"device-{n}" for n in range(200)
        )


async def test_wrong_credentials_are_told_logged_once_and_seen() -> None:
    async with ApnsDouble() as double, ApnsDouble() as other:
        bridge = bridge_of(OwnTime(), channels=other.channels(), base_url=double.url)
        with capture_logs() as lines:
            for _ in range(3):
                with pytest.raises(BridgeAuthError):
                    await bridge.send(DATA, notification())

        assert [line["event"] for line in lines] == ["bridge.failing"]
        assert not bridge.conditions()[0].ok
        assert not (await bridge.check())[0].ok
        await bridge.close()


async def test_the_dry_run_reaches_no_device() -> None:
    async with bridged() as (double, bridge, _):
        assert [condition.ok for condition in await bridge.check()] == [True]
        assert double.taken == []


async def test_a_token_with_odd_letters_stays_within_its_path() -> None:
    async with bridged() as (double, bridge, _):
        await bridge.send({**DATA, "token": "../../x?y#z\r\n"}, notification())

        assert double.taken[0][0] == "..%2F..%2Fx%3Fy%23z%0D%0A"


async def test_a_message_too_large_is_not_sent() -> None:
    """C-128."""
    async with bridged() as (double, bridge, _):
        with pytest.raises(BridgePayloadTooLargeError, match="bytes too many"):
            await bridge.send(DATA, notification(data="A" * 4000))

        assert double.taken == []


async def test_an_unknown_channel_and_an_incomplete_record_are_told() -> None:
    async with bridged() as (_, bridge, _):
        with pytest.raises(UnknownChannelError):
            bridge.registered("nightly", "a1b2c3d4e5f6", None)
        with pytest.raises(UnknownChannelError):
            await bridge.send({**DATA, "rel_channel": "nightly"}, notification())
        with pytest.raises(BridgeGoneError):
            await bridge.send({"token": "a1b2c3d4e5f6"}, notification())


async def test_a_certificate_may_be_used_instead_of_a_token(tmp_path: Path) -> None:
    cert, key = self_signed(tmp_path)
    inline = {"cert": cert.read_text(), "key": key.read_text()}
    for given in ({"cert": str(cert), "key": str(key)}, inline):
        channels = json.dumps({"release": given})
        bridge = bridge_of(OwnTime(), channels=channels, base_url="https://127.0.0.1:9")

        assert bridge.registered("release", "a1b2c3d4e5f6", None) == DATA
        await bridge.close()


@pytest.mark.parametrize(
    "channel, complaint",
    [
        ({"key": "/missing.p8", "key_id": "K", "team_id": "T"}, "missing.p8"),
        ({"key": "-----BEGIN X-----", "key_id": "K", "team_id": "T"}, "private key"),
        ({"key": "x"}, "it needs cert and key"),
        ({"cert": "/missing.pem", "key": "/missing.pem"}, "cannot be used"),
        ({"team_id": "T"}, "not JSON of channels"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_channels_that_cannot_be_used_are_named(
    channel: dict[str, str], complaint: str
) -> None:
    with pytest.raises(SettingsError, match=complaint):
        bridge_of(OwnTime(), channels=json.dumps({"beta": channel}))


async def test_a_certificates_key_with_a_passphrase_is_refused(tmp_path: Path) -> None:
    """OpenSSL would ask for it on the terminal, and the start would wait."""
    cert, _ = self_signed(tmp_path)
    key = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    given = {"cert": str(cert), "key": key.decode()}
    with pytest.raises(SettingsError, match="beta: cert and key cannot be used"):
        bridge_of(OwnTime(), channels=json.dumps({"beta": given}))


@pytest.mark.parametrize("field", ["key", "cert"])
async def test_a_key_that_is_no_path_is_not_shown(field: str) -> None:
    secret = "MIGTAgEAMBMG\nByqGSM49AgEGCCqGSM49"
    given = {"key": secret, "key_id": "K", "team_id": "T"} | {field: secret}
    with pytest.raises(SettingsError, match=r"apns\.channels, beta") as raised:
        bridge_of(OwnTime(), channels=json.dumps({"beta": given}))

    assert secret[:12] not in str(raised.value)


async def test_apples_own_addresses_are_the_default() -> None:
    async with ApnsDouble() as double:
        channel = {"key": pem_of(double.key), "key_id": "K", "team_id": "T"}
    channels = json.dumps({"release": channel, "dev": channel | {"sandbox": True}})
    bridge = bridge_of(OwnTime(), channels=channels)

    assert bridge.origins() == {
        "release": "https://api.push.apple.com",
        "dev": "https://api.sandbox.push.apple.com",
    }
