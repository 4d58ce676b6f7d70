"""Messages for user agents behind a bridge (webpush §7), without a vendor."""

import json
from typing import Any

import pytest

from tests.unit.push.endpoint.endpoint_world import CHID, UAID, World
from tests.unit.push.endpoint.recording_bridge import RecordingBridge
from waystation.base.errors import StoreUnavailableError
from waystation.push.endpoint.bridges.unconfigured import UnconfiguredBridge
from waystation.push.endpoint.observer import Observer
from waystation.push.errors import (
    BridgeAuthError,
    BridgeConnectError,
    BridgeError,
    BridgeGoneError,
    BridgePayloadTooLargeError,
    BridgeStubError,
    BridgeTimeoutError,
    UnknownAppError,
    UnknownChannelError,
    UnknownRouterTypeError,
)
from waystation.push.model import ChannelId, Milestone, Notification, Uaid, Update, UserAgent

DATA = {"token": "device-token-1", "app_id": "app"}


class Noting(Observer):
    def __init__(self) -> None:
        self.notes: list[tuple[Any, ...]] = []

    def received_for_bridge(
        self, uaid: Uaid, notification: Notification, size: int, via: str
    ) -> None:
        self.notes.append(("received", via, size))

    def bridged(
        self, notification: Notification, via: str, app_id: str, code: int, took_s: float
    ) -> None:
        self.notes.append(("bridged", via, app_id, code, took_s))

    def bridge_failed(
        self, notification: Notification, via: str, app_id: str, error: Exception, took_s: float
    ) -> None:
        self.notes.append(("failed", via, app_id, type(error)))

    def bridge_token_gone(self, uaid: Uaid, via: str) -> None:
        self.notes.append(("token gone", via))

    def user_agent_dropped(self, uaid: Uaid) -> None:
        self.notes.append(("dropped",))

    def errored(self, notification: Notification | Update, errno: int) -> None:
        self.notes.append(("errored", errno))


class Bridged:
    """One device behind a bridge, and an app server that posts to it."""

    def __init__(self, **given: Any) -> None:
        self.bridge = RecordingBridge()
        self.observer = Noting()
        self.world = World(bridges={"fcm": self.bridge}, observer=self.observer, **given)

    async def register(self, router_type: str = "fcm", **data: Any) -> None:
        record = UserAgent(
            uaid=UAID,
            connected_at_ms=1000,
            router_type=router_type,
            router_data={**DATA, **data},
        )
        assert await self.world.store.claim_route(record)
        assert await self.world.store.add_channel(UAID, CHID, channels_max=10)

    async def record(self) -> UserAgent | None:
        return await self.world.store.get_user_agent(UAID)


@pytest.fixture
async def device() -> Bridged:
    bridged = Bridged()
    await bridged.register()
    return bridged


async def test_a_message_is_answered_201_when_the_bridge_has_taken_it(device: Bridged) -> None:
    reply = await device.world.post(body=b"x" * 100, ttl="10", topic="news", urgency="high")

    assert (reply.status, reply.headers["TTL"], reply.body) == (201, "10", b"")
    ((token, notification),) = device.bridge.sent
    assert token == DATA["token"]
    assert (notification.channel_id, notification.ttl_s, notification.topic) == (CHID, 10, "news")
    assert reply.headers["Location"].endswith(f"/m/{notification.message_id}")
    assert await device.world.stored() == []
    assert device.observer.notes == [
        ("received", "fcm", 100),
        ("bridged", "fcm", "app", 200, 0.0),
    ]


async def test_it_is_not_answered_before(device: Bridged) -> None:
    async def wait() -> None:
        device.world.clock.advance(2.5)

    device.bridge.during = wait
    await device.world.post()

    assert device.observer.notes[-1] == ("bridged", "fcm", "app", 200, 2.5)


async def test_a_signed_message_ends_with_the_bridge(device: Bridged) -> None:
    reply = await device.world.post(**device.world.signed())
    await device.world.milestones.close()
    path = reply.headers["Location"].partition("example.org")[2]
    status = await device.world.ask("GET", f"{path}/status", **device.world.signed())

    assert (status.json["state"], status.json["final"]) == (Milestone.BRIDGE_TRANSMITTED, True)


@pytest.mark.parametrize(
    "failure, status, errno",
    [
        (BridgeAuthError("no"), 502, 901),
        (BridgeConnectError("no"), 502, 902),
        (BridgeTimeoutError("no"), 502, 903),
        (BridgeError("no"), 502, None),
        (BridgePayloadTooLargeError("no"), 413, 104),
        (BridgeStubError("no"), 500, None),
        (RuntimeError("a bug"), 500, 999),
    ],
)
async def test_each_failure_of_a_bridge_has_its_answer(
    device: Bridged, failure: Exception, status: int, errno: int | None
) -> None:
    device.bridge.failure = failure
    reply = await device.world.post()

    assert (reply.status, reply.errno) == (status, errno)
    assert ("failed", "fcm", "app", type(failure)) in device.observer.notes
    assert ("errored", errno or 0) in device.observer.notes
    assert await device.record() is not None
    assert await device.world.stored() == []


async def test_a_device_that_the_vendor_does_not_know_is_removed(device: Bridged) -> None:
    device.bridge.failure = BridgeGoneError("gone")
    reply = await device.world.post()
    again = await device.world.post()

    assert (reply.status, reply.errno) == (410, 106)
    assert (again.status, again.errno) == (410, 106)
    assert await device.record() is None
    assert device.observer.notes[-3:] == [("token gone", "fcm"), ("dropped",), ("errored", 106)]


async def test_a_device_that_has_got_another_token_meanwhile_stays(device: Bridged) -> None:
    async def renew() -> None:
        await device.register(token="device-token-2")

    device.bridge.during, device.bridge.failure = renew, BridgeGoneError("gone")
    reply = await device.world.post()

    assert (reply.status, reply.errno) == (503, None)
    record = await device.record()
    assert record is not None
    assert record.router_data == {**DATA, "token": "device-token-2"}

    device.bridge.during = device.bridge.failure = None
    assert (await device.world.post()).status == 201


async def test_a_device_that_was_removed_meanwhile_is_gone(device: Bridged) -> None:
    async def leave() -> None:
        await device.world.store.remove_user_agent(UAID)

    device.bridge.during, device.bridge.failure = leave, BridgeGoneError("gone")
    reply = await device.world.post()

    assert (reply.status, reply.errno) == (410, 106)
    assert ("dropped",) not in device.observer.notes


async def test_a_device_that_could_not_be_removed_is_removed_by_the_next_message(
    device: Bridged,
) -> None:
    device.bridge.failure = BridgeGoneError("gone")
    device.world.store.failures["remove_user_agent"] = StoreUnavailableError("no")
    reply = await device.world.post()
    device.world.store.failures.clear()

    assert reply.status == 503
    assert (await device.world.post()).status == 410
    assert await device.record() is None


async def test_a_channel_without_subscription_is_410_for_bridged_devices_as_well(
    device: Bridged,
) -> None:
    """T-15: the reference goes on sending."""
    await device.world.store.remove_channel(UAID, CHID)
    reply = await device.world.post()

    assert (reply.status, reply.errno) == (410, 106)
    assert device.bridge.sent == []
    assert await device.record() is not None


@pytest.mark.parametrize(
    "headers, status, errno",
    [
        ({"ttl": None}, 400, 111),
        ({"ttl": "-1"}, 400, 114),
        ({"topic": "x" * 33}, 400, 113),
        ({"content_encoding": "none"}, 400, 110),
    ],
)
async def test_the_checks_of_a_message_are_the_same_for_bridged_devices(
    device: Bridged, headers: dict[str, Any], status: int, errno: int
) -> None:
    reply = await device.world.post(body=b"x", **headers)

    assert (reply.status, reply.errno) == (status, errno)
    assert device.bridge.sent == []


@pytest.mark.parametrize(
    "kind, error, status, errno",
    [
        ("fcm", UnknownAppError, 400, 106),
        ("apns", UnknownChannelError, 400, None),
        ("stub", UnknownRouterTypeError, 400, 108),
    ],
)
async def test_a_bridge_that_is_not_configured_here_removes_nobody(
    kind: str, error: Any, status: int, errno: int | None
) -> None:
    world = World(bridges={kind: UnconfiguredBridge(kind, error)})
    assert await world.store.claim_route(
        UserAgent(uaid=UAID, connected_at_ms=1000, router_type=kind, router_data=DATA)
    )
    assert await world.store.add_channel(UAID, CHID, channels_max=10)
    reply = await world.post()

    assert (reply.status, reply.errno) == (status, errno)
    assert await world.store.get_user_agent(UAID) is not None


@pytest.mark.parametrize("kind", ["gcm", "adm"])
async def test_devices_of_retired_bridges_are_dropped(kind: str) -> None:
    device = Bridged()
    await device.register(kind)
    reply = await device.world.post()

    assert (reply.status, reply.errno) == (410, 106)
    assert await device.record() is None


async def test_a_matrix_homeserver_reaches_a_bridged_device(device: Bridged) -> None:
    pushkey = device.world.settings.url + device.world.path()
    body = json.dumps({"notification": {"devices": [{"pushkey": pushkey}], "id": "1"}}).encode()
    reply = await device.world.ask("POST", "/_matrix/push/v1/notify", body)

    assert reply.json == {"rejected": []}
    assert len(device.bridge.sent) == 1


async def test_another_subscription_of_the_same_device_is_reached_too(device: Bridged) -> None:
    other = ChannelId(bytes(15) + b"\x01")
    await device.world.store.add_channel(UAID, other, channels_max=10)
    token = device.world.keys.endpoint_token(UAID, other)
    reply = await device.world.post(f"/wpush/v1/{token}")

    assert reply.status == 201
    assert device.bridge.sent[0][1].channel_id == other
