import pytest

from tests.unit.push.endpoint.endpoint_world import CHID, NODE, UAID, World
from tests.unit.push.endpoint.recording_bridge import RecordingBridge
from waystation.base.clock import ManualClock
from waystation.base.errors import StoreUnavailableError
from waystation.push.endpoint import reports
from waystation.push.endpoint.reports import Reports
from waystation.push.errors import BridgeConnectError, BridgeGoneError
from waystation.push.model import Notification
from waystation.push.token import MessageIds
from waystation.push.wire.relay import Answer
from waystation.telemetry import events
from waystation.telemetry.hashes import EventHashes
from waystation.telemetry.metrics import Metrics


class Reported:
    def __init__(self) -> None:
        self.sink = events.RecordedEvents()
        self.metrics = Metrics()
        self.hashes = EventHashes(b"m" * 32)
        self.bridge = RecordingBridge()
        self.world = World(
            bridges={"fcm": self.bridge},
            observer=Reports(
                sink=self.sink,
                hashes=self.hashes,
                metrics=self.metrics,
                clock=ManualClock(),
                database="memory",
            ),
        )

    @property
    def kinds(self) -> list[str]:
        return [type(event).__name__ for event in self.sink.events]

    def count(self, name: str, **labels: str) -> float:
        return self.metrics.counter(name, **labels).value


@pytest.fixture
async def reported(monkeypatch: pytest.MonkeyPatch) -> Reported:
    monkeypatch.setattr(reports, "SAMPLE", 1)
    return Reported()


async def test_one_success_in_sixteen_stands_for_all_of_them() -> None:
    reported = Reported()
    await reported.world.subscribe(node_id=NODE)
    for _ in range(reports.SAMPLE * 2):
        await reported.world.post(body=b"x")

    assert reported.kinds.count("PushReceived") == 32
    assert reported.kinds.count("EpRequest") == 2
    assert sorted(reported.sink.weights)[-2:] == [16, 16]


async def test_a_direct_notification_leaves_three_events(reported: Reported) -> None:
    world = reported.world
    await world.subscribe(node_id=f"{NODE}/w/3")
    await world.post(body=b"x" * 10, **world.signed(sub="mailto:ops@example.org"))

    assert reported.kinds == ["PushReceived", "PushIntTransmitted", "EpRequest"]
    received, relayed, request = reported.sink.events
    assert isinstance(received, events.PushReceived)
    assert isinstance(relayed, events.PushIntTransmitted)
    assert isinstance(request, events.EpRequest)
    notification = world.relay.pushed[0][2]
    assert received.mid == relayed.mid
    assert received.mid == reported.hashes.mid(notification.message_id, notification.timestamp_s)
    assert received.uah == reported.hashes.uah(UAID, world.clock.now_ms())
    assert received.chh == request.chh == reported.hashes.chh(CHID, world.clock.now_ms())
    assert received.app == request.app == EventHashes.app(world.sender.point)
    assert (received.size, received.ttl, request.code, request.errno) == (10, 300, 201, 0)
    assert request.attrs.sub is not None
    assert relayed.peer.endswith(".connect.3")
    assert "10.0.0.7" not in relayed.peer
    assert reported.count("notification_received", trackable="false") == 1
    assert reported.count("notification_direct", status="200") == 1
    assert reported.count("updates_vapid", draft="draft02") == 1
    assert reported.count("updates_notification_encoding", encoding="aes128gcm") == 1


@pytest.mark.parametrize(
    "answer, kind",
    [
        (Answer.BUSY, "EpNodeBusy"),
        (Answer.ABSENT, "EpNodeGone"),
        (Answer.UNREACHABLE, "EpNodeTimeout"),
    ],
)
async def test_a_node_that_did_not_take_it_is_an_event(
    reported: Reported, answer: Answer, kind: str
) -> None:
    world = reported.world
    await world.subscribe(node_id=NODE)
    world.relay.push_answer = answer
    await world.post(topic="t")

    assert reported.kinds == ["PushReceived", "PushIntTransmitted", kind, "PushStored", "EpRequest"]
    assert (
        reported.count("notification_message", event="stored", topic="true", database="memory") == 1
    )
    assert reported.count("updates_client_host_gone") == (answer is Answer.UNREACHABLE)


async def test_a_stored_one_that_a_newer_of_its_topic_replaced_has_come_to_its_end(
    reported: Reported,
) -> None:
    await reported.world.subscribe()
    await reported.world.post(topic="t", body=b"x" * 10)
    await reported.world.post(topic="t", body=b"x" * 10)
    await reported.world.post(topic="other", body=b"x" * 10)

    told = [event for event in reported.sink.events if isinstance(event, events.PushSuperseded)]
    stored = [event for event in reported.sink.events if isinstance(event, events.PushStored)]
    assert [event.mid for event in told] == [stored[0].mid]
    assert [event.size for event in stored] == [10, 10, 10]


async def test_ttl_zero_for_nobody_is_expired(reported: Reported) -> None:
    await reported.world.subscribe()
    await reported.world.post(ttl="0")

    assert reported.kinds == ["PushReceived", "PushExpired", "EpRequest"]


async def test_failures_carry_their_numbers(reported: Reported) -> None:
    world = reported.world
    await world.subscribe()
    await world.post("/wpush/v1/garbage")
    await world.post(authorization="vapid nonsense")
    world.store.failures["save"] = StoreUnavailableError("down")
    await world.post()

    assert reported.kinds == [
        "EpRequest",
        "EpAuthError",
        "EpRequest",
        "PushReceived",
        "PushErrored",
        "EpRequest",
    ]
    requests = [event for event in reported.sink.events if isinstance(event, events.EpRequest)]
    assert [(r.code, r.errno) for r in requests] == [(404, 102), (401, 109), (503, 201)]
    assert requests[0].chh is None
    assert reported.count("api_error", label="invalid_token") == 1
    assert reported.count("notification_auth_result", result="error") == 1


async def test_a_removed_user_agent_is_counted(reported: Reported) -> None:
    await reported.world.subscribe(router_type="gcm")
    await reported.world.post()

    assert reported.count("updates_drop_user", errno="106") == 1


async def test_a_message_with_another_id_begins_anew_under_it(reported: Reported) -> None:
    """Its sort key was taken: whoever folds events sees the first id end, and the second live."""
    world = reported.world
    ids = MessageIds(world.keys, world.clock, sort_keys="autopush")
    before, after = (
        Notification(CHID, *ids.for_timestamp(UAID, CHID, 1_000), 1_000, 60, data="AAAA")
        for _ in range(2)
    )
    world.intake._observer.renamed(UAID, before, after)

    errored, received = reported.sink.events
    assert isinstance(errored, events.PushErrored)
    assert isinstance(received, events.PushReceived)
    assert errored.mid == reported.hashes.mid(before.message_id, 1)
    assert (received.mid, received.size) == (reported.hashes.mid(after.message_id, 1), 3)
    assert reported.count("notification_key_taken") == 1


# Bridges and registrations


class Phone:
    """A device that has registered, with its secret at hand."""

    def __init__(self, world: World, registered: dict[str, str]) -> None:
        self._world = world
        self._headers = {"authorization": f"Bearer {registered['secret']}"}
        self._path = f"/v1/fcm/app/registration/{registered['uaid']}"
        self.endpoint = registered["endpoint"].removeprefix(world.settings.url)

    async def call(self, method: str, rest: str = "", body: bytes = b"") -> None:
        reply = await self._world.ask(
            method, self._path + rest, body, content_type="application/json", **self._headers
        )
        assert reply.status == 200


async def phone_of(world: World) -> Phone:
    body = b'{"token":"device-token-1"}'
    path = "/v1/fcm/app/registration"
    reply = await world.ask("POST", path, body, content_type="application/json")
    return Phone(world, reply.json)


async def test_a_bridged_message_leaves_its_way_and_its_end(reported: Reported) -> None:
    phone = await phone_of(reported.world)
    reported.sink.events.clear()
    await reported.world.post(phone.endpoint, b"x" * 10, **reported.world.signed())

    assert reported.kinds == ["PushReceived", "BridgeSent", "PushBridgeTransmitted", "EpRequest"]
    received, sent, transmitted, _ = reported.sink.events
    assert isinstance(received, events.PushReceived)
    assert isinstance(sent, events.BridgeSent)
    assert isinstance(transmitted, events.PushBridgeTransmitted)
    assert received.mid == sent.mid == transmitted.mid
    assert (received.via, received.size, received.ttl) == ("fcm", 10, 300)
    assert received.app == EventHashes.app(reported.world.sender.point)
    assert (sent.via, sent.code) == (transmitted.via, transmitted.code) == ("fcm", 200)
    labels = {"platform": "fcm", "app_id": "app"}
    assert reported.count("notification_bridge", result="sent", **labels) == 1
    assert reported.count("notification_message_data_bytes", destination="Direct", **labels) == 10
    assert reported.count("updates_notification_encoding", encoding="aes128gcm") == 1


async def test_a_failure_of_a_bridge_is_an_event_and_the_end(reported: Reported) -> None:
    phone = await phone_of(reported.world)
    reported.sink.events.clear()
    reported.bridge.failure = BridgeConnectError("no")
    await reported.world.post(phone.endpoint)

    assert reported.kinds == ["PushReceived", "BridgeError", "PushErrored", "EpRequest"]
    failed, errored = reported.sink.events[1:3]
    assert isinstance(failed, events.BridgeError)
    assert isinstance(errored, events.PushErrored)
    assert (failed.via, failed.code, errored.errno) == ("fcm", 502, 902)
    labels = {"platform": "fcm", "app_id": "app", "reason": "bridge_connect"}
    assert reported.count("notification_bridge", result="error", **labels) == 1


async def test_a_device_that_is_gone_is_an_event_and_counted(reported: Reported) -> None:
    phone = await phone_of(reported.world)
    reported.sink.events.clear()
    reported.bridge.failure = BridgeGoneError("gone")
    await reported.world.post(phone.endpoint)

    assert "BridgeTokenGone" in reported.kinds
    assert reported.count("updates_drop_user", errno="106") == 1


async def test_each_change_of_a_registration_is_an_event(reported: Reported) -> None:
    phone = await phone_of(reported.world)
    chid = "c0ffee00-1234-4abc-8def-0123456789ab"
    await phone.call("PUT", body=b'{"token":"device-token-2"}')
    await phone.call("GET")
    await phone.call("POST", "/subscription", b'{"channelID":"%b"}' % chid.encode())
    await phone.call("DELETE", f"/subscription/{chid}")
    await phone.call("DELETE")

    assert reported.kinds == [
        "RegNew",
        "RegUpdate",
        "RegChannelNew",
        "RegChannelDelete",
        "RegDelete",
    ]
    assert len({event.uah for event in reported.sink.events}) == 1  # type: ignore[attr-defined]
    assert reported.count("ua_connection_check") == 1


class TestUpdates:
    """SimplePush in the funnel: what a version leaves behind on an endpoint node."""

    async def put(self, reported: Reported, version: int) -> str:
        world = reported.world
        token = world.keys.endpoint_token(UAID, CHID)
        await world.ask("PUT", f"/update/{token}", f"version={version}&data=hi".encode())
        return reported.hashes.mid(f"{CHID.hex()}:{version}", world.now_s)

    def milestones(self, reported: Reported) -> list[tuple[str, str]]:
        return [
            (type(event).__name__, event.mid)
            for event in reported.sink.events
            if isinstance(
                event,
                events.PushReceived
                | events.PushIntTransmitted
                | events.PushStored
                | events.PushSuperseded
                | events.PushErrored,
            )
        ]

    async def test_a_direct_one_is_received_and_relayed(self, reported: Reported) -> None:
        world = reported.world
        await world.subscribe(router_type="simplepush", node_id=NODE)
        mid = await self.put(reported, 5)

        assert self.milestones(reported) == [("PushReceived", mid), ("PushIntTransmitted", mid)]
        (received,) = [e for e in reported.sink.events if isinstance(e, events.PushReceived)]
        assert (received.via, received.size, received.ttl) == ("simplepush", 2, 2_592_000)
        assert received.uah == reported.hashes.uah(UAID, world.clock.now_ms())
        assert received.chh == reported.hashes.chh(CHID, world.clock.now_ms())
        assert world.relay.pushed[0][2].accepted_at_ms == world.clock.now_ms()

    async def test_a_newer_one_ends_the_stored_one_and_an_older_one_ends_at_once(
        self, reported: Reported
    ) -> None:
        await reported.world.subscribe(router_type="simplepush")
        five, seven, six = [await self.put(reported, version) for version in (5, 7, 6)]

        assert self.milestones(reported) == [
            ("PushReceived", five),
            ("PushStored", five),
            ("PushReceived", seven),
            ("PushSuperseded", five),
            ("PushStored", seven),
            ("PushReceived", six),
            ("PushSuperseded", six),
        ]

    async def test_the_same_version_later_is_another_message(self, reported: Reported) -> None:
        await reported.world.subscribe(router_type="simplepush", node_id=NODE)
        first = await self.put(reported, 5)
        reported.world.clock.advance(2)
        second = await self.put(reported, 5)

        assert first != second
        assert [mid for _, mid in self.milestones(reported)] == [first, first, second, second]

    async def test_one_that_cannot_be_stored_has_come_to_its_end(self, reported: Reported) -> None:
        world = reported.world
        await world.subscribe(router_type="simplepush")
        world.store.failures["save_update"] = StoreUnavailableError("no")
        mid = await self.put(reported, 5)

        assert self.milestones(reported) == [("PushReceived", mid), ("PushErrored", mid)]
