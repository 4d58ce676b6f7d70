import pytest

from tests.unit.push.endpoint.endpoint_world import CHID, NODE, UAID, World
from waystation.base.clock import ManualClock
from waystation.push.endpoint import reports
from waystation.push.endpoint.reports import Reports
from waystation.push.errors import StoreUnavailableError
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
        self.world = World(
            observer=Reports(
                sink=self.sink,
                hashes=self.hashes,
                metrics=self.metrics,
                clock=ManualClock(),
                database="memory",
            )
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
