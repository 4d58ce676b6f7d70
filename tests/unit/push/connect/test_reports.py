from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
import structlog
from structlog.testing import CapturingLogger

from tests.unit.push.connect.house import House, Peer
from tests.unit.push.connect.talk import CHANNEL, NODE, NOW_MS, UAID, ack, notification, update
from waystation.base.clock import ManualClock
from waystation.base.ids import dashed, simple
from waystation.net.websocket.connection import WebSocket
from waystation.push.connect.reports import Reports
from waystation.push.model import MessageId, Milestone, Notification, Replaced
from waystation.push.node_names import NodeNames
from waystation.telemetry import events
from waystation.telemetry.events.base import Event, RecordedEvents
from waystation.telemetry.hashes import EventHashes
from waystation.telemetry.metrics import Metrics

E = TypeVar("E", bound=Event)


class Noted:
    full = False
    dropped = 0

    def __init__(self) -> None:
        self.notes: list[tuple[str, str]] = []

    def note(self, notification: Notification, milestone: Milestone) -> None:
        self.notes.append((notification.message_id, milestone.value))


class Office:
    """A worker whose reports are kept."""

    def __init__(self, tmp_path: Path) -> None:
        self.sink = RecordedEvents()
        self.metrics = Metrics()
        self.milestones = Noted()
        self.lines = CapturingLogger()
        self.hashes = EventHashes(b"k" * 32)
        self.house = House(tmp_path, observe=self.reports)

    def reports(self, clock: ManualClock) -> Reports:
        return Reports(
            sink=self.sink,
            hashes=self.hashes,
            metrics=self.metrics,
            milestones=self.milestones,
            clock=clock,
            # Whatever level another test's worker has set for the whole process.
            log=structlog.wrap_logger(
                self.lines,
                processors=[],
                wrapper_class=structlog.make_filtering_bound_logger(0),
            ),
        )

    def told(self, kind: type[E]) -> list[E]:
        return [event for event in self.sink.events if isinstance(event, kind)]

    def count(self, name: str, **labels: str) -> float:
        return self.metrics.counter(name, **labels).value

    def line(self) -> dict[str, Any]:
        (call,) = self.lines.calls
        return dict(call.kwargs)

    async def connected(self) -> Peer:
        await self.house.knows()
        return self.house.greeted()


@pytest.fixture
async def office(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Office]:
    monkeypatch.setattr(WebSocket, "peer_address", lambda self: "192.0.2.1")
    office = Office(tmp_path)
    yield office
    await office.house.close()


async def test_a_connection_is_told_of_from_its_opening_to_its_end(office: Office) -> None:
    peer = await office.connected()
    office.house.clock.advance(2)
    peer.vanish()

    (opened,) = office.told(events.ConnOpen)
    (hello,) = office.told(events.ConnHello)
    (closed,) = office.told(events.ConnClose)
    assert opened.cid == hello.cid == closed.cid
    assert hello.flag is False  # not new
    assert hello.uah == closed.uah == office.hashes.uah(UAID, NOW_MS)
    assert (hello.attrs.os, hello.attrs.browser) == ("Linux", "Firefox")
    assert closed.dur == 2_000_000
    assert office.told(events.ConnHelloReject) == []
    assert office.count("ua_command", command="hello", detail="existing") == 1


@pytest.mark.parametrize("uaid, detail", [(None, "new"), (UAID, "reassigned")])
async def test_newcomers_and_strangers_are_told_apart(
    office: Office, uaid: Any, detail: str
) -> None:
    office.house.greeted(uaid=uaid)

    assert office.told(events.ConnHello)[0].flag is True
    assert office.count("ua_command", command="hello", detail=detail) == 1


async def test_the_line_of_a_connection_has_all_that_was_learnt_and_no_id(office: Office) -> None:
    """C-159"""
    peer = await office.connected()
    await office.house.driver.push(UAID, notification(1))
    await office.house.driver.push(UAID, notification(2))
    peer.say(ack(notification(1)))
    peer.say({"messageType": "nack", "version": "m-00001", "code": 301})
    peer.register()
    peer.vanish()
    line = office.line()

    assert line["direct_acked"] == 1
    assert line["direct_storage"] == 1
    assert line["nacks"] == 1
    assert line["registers"] == 1
    assert line["existing_uaid"] is True
    assert line["reason"] == "vanished"
    assert line["connection_type"] == "webpush"
    text = repr(line)
    for secret in (simple(UAID), dashed(UAID), dashed(CHANNEL), "m-00001", "AbC_"):
        assert secret not in text


async def test_a_direct_notification_is_told_of_from_acceptance_to_delivery(
    office: Office,
) -> None:
    """C-156"""
    peer = await office.connected()
    await office.house.driver.push(UAID, notification(1, topic="t"))
    peer.say(ack(notification(1)))

    mid = office.hashes.mid("m-00001", NOW_MS // 1000)
    assert [(event.mid, event.path) for event in office.told(events.PushTransmitted)] == [(mid, 0)]
    assert office.told(events.PushDelivered)[0].mid == mid
    assert [milestone for _, milestone in office.milestones.notes] == ["transmitted", "delivered"]
    assert office.count("ua_notification_sent", source="Direct", topic="true") == 1
    assert office.count("ua_message_data_bytes", source="Direct") == 4
    assert office.count("ua_command", command="ack") == 1


async def test_a_tracked_notification_is_told_of_at_every_hop(office: Office) -> None:
    """C-156"""
    peer = await office.connected()
    tracked = msgspec.structs.replace(notification(1), reliability_id="r-1")
    await office.house.driver.push(UAID, tracked)
    peer.say(ack(tracked))

    assert [milestone for _, milestone in office.milestones.notes] == [
        "int_accepted",
        "transmitted",
        "accepted",
        "delivered",
    ]


async def test_a_stored_notification_is_retrieved_transmitted_and_delivered(
    office: Office,
) -> None:
    await office.house.knows()
    await office.house.store.inner.save(UAID, notification(1))
    peer = office.house.greeted()
    peer.say(ack(notification(1)))

    assert len(office.told(events.PushRetrieved)) == 1
    assert [event.path for event in office.told(events.PushTransmitted)] == [1]
    assert len(office.told(events.PushDelivered)) == 1
    assert [event.n for event in office.told(events.ConnStorageCheck)] == [1, 0]
    assert [milestone for _, milestone in office.milestones.notes] == ["retrieved", "delivered"]


@pytest.mark.parametrize(
    "code, kind, milestone",
    [
        (101, events.PushDecryptionError, "decryption_error"),
        (102, events.PushNotDelivered, "not_delivered"),
        (7, events.PushDelivered, "delivered"),
    ],
)
async def test_an_ack_says_how_it_ended(
    office: Office, code: int, kind: type[Event], milestone: str
) -> None:
    """C-158"""
    peer = await office.connected()
    await office.house.driver.push(UAID, notification(1))
    peer.say(ack(notification(1), code=code))

    assert len(office.told(kind)) == 1
    assert office.milestones.notes[-1] == ("m-00001", milestone)


async def test_an_ack_of_ttl_zero_is_a_delivery(office: Office) -> None:
    peer = await office.connected()
    fleeting = notification(1, ttl_s=0)
    await office.house.driver.push(UAID, fleeting)
    peer.say(ack(fleeting))

    assert len(office.told(events.PushDelivered)) == 1


async def test_what_is_dropped_with_its_channel_is_not_delivered(office: Office) -> None:
    peer = await office.connected()
    await office.house.driver.push(UAID, notification(1))
    peer.say({"messageType": "unregister", "channelID": dashed(CHANNEL), "code": 202})

    assert office.told(events.PushDelivered) == []
    assert [event.errno for event in office.told(events.PushErrored)] == [106]
    assert [event.code for event in office.told(events.ConnUnregister)] == [202]
    assert office.count("ua_command", command="unregister", detail="202") == 1


async def test_a_nack_is_counted_by_its_code(office: Office) -> None:
    """C-032"""
    peer = await office.connected()
    peer.say({"messageType": "nack", "version": "m", "code": 302})

    assert [event.code for event in office.told(events.ConnNack)] == [302]
    assert office.count("ua_command", command="nack", detail="302") == 1


async def test_what_is_handed_back_is_stored(office: Office) -> None:
    peer = await office.connected()
    await office.house.driver.push(UAID, notification(1))
    peer.vanish()
    await office.house.settle()

    assert [event.n for event in office.told(events.ConnUnackedStored)] == [1]
    assert len(office.told(events.PushStored)) == 1


async def test_of_what_is_handed_back_the_older_one_of_a_topic_is_superseded(
    office: Office,
) -> None:
    """Stored and then replaced, in this order: so the contract's transitions have it."""
    peer = await office.connected()
    for name, age_ms in (("old", 0), ("new", 1)):
        row = notification(name, topic="t", accepted_at_ms=NOW_MS + age_ms)
        await office.house.driver.push(UAID, row)
    peer.vanish()
    await office.house.settle()

    stored = [event.mid for event in office.told(events.PushStored)]
    assert [event.mid for event in office.told(events.PushSuperseded)] == stored[:1]
    assert len(stored) == 2


async def test_what_had_expired_was_not_superseded(office: Office) -> None:
    reports = office.reports(office.house.clock)
    reports.superseded(Replaced(MessageId("m"), NOW_MS - 2000, NOW_MS - 1000))
    reports.superseded(Replaced(MessageId("n"), NOW_MS - 2000, NOW_MS + 1000))

    assert len(office.told(events.PushSuperseded)) == 1


async def test_a_refusal_is_counted(office: Office) -> None:
    peer = await office.connected()
    peer.connection.out_bytes = 65_536
    await office.house.driver.push(UAID, notification(1))

    assert office.count("client_channel_full") == 1
    assert office.told(events.PushTransmitted) == []


async def test_a_hello_that_lost_is_a_rejected_one_and_counted(office: Office) -> None:
    """C-014"""
    await office.house.knows(connected_at_ms=NOW_MS + 60_000)
    peer = office.house.connect()
    peer.hello()

    assert [event.code for event in office.told(events.ConnHelloReject)] == [1011]
    assert office.told(events.ConnHello) == []
    assert office.count("ua_already_connected") == 1


async def test_a_connection_that_never_said_hello_is_rejected(office: Office) -> None:
    """C-009"""
    office.house.connect()
    office.house.pass_time(6)

    assert [event.code for event in office.told(events.ConnHelloReject)] == [1011]
    assert office.line()["uaid"] is None
    assert office.line()["reason"] == "HandshakeTimeout"


async def test_an_older_connection_elsewhere_is_told_of_by_the_node_that_took_over(
    office: Office,
) -> None:
    await office.house.knows(node_id="http://elsewhere:8081")
    office.house.greeted()
    await office.house.settle()

    (displaced,) = office.told(events.ConnDisplaced)
    assert displaced.uah == office.hashes.uah(UAID, NOW_MS)
    assert displaced.peer == NodeNames(office.hashes).of("http://elsewhere:8081")


async def test_an_older_connection_here_is_told_of_too(office: Office) -> None:
    await office.connected()
    office.house.clock.advance(1)
    office.house.greeted()

    (displaced,) = office.told(events.ConnDisplaced)
    assert displaced.peer == NodeNames(office.hashes).of(NODE)


async def test_a_reset_names_its_reason(office: Office) -> None:
    await office.house.knows(record_version=None)
    office.house.greeted()

    assert [event.code for event in office.told(events.ConnDropUser)] == [3]
    assert office.count("ua_expiration", reason="old_record_version") == 1


async def test_simplepush_has_no_milestones(office: Office) -> None:
    await office.house.knows(router_type="simplepush")
    peer = office.house.greeted(use_webpush=False)
    await office.house.driver.push(UAID, update(5))
    peer.say(ack(update(5)))
    await office.house.driver.push(UAID, update(6))
    peer.vanish()
    await office.house.settle()

    assert office.milestones.notes == []
    assert office.line()["connection_type"] == "simplepush"
    assert office.count("ua_command", command="ack") == 1
    assert [event.n for event in office.told(events.ConnUnackedStored)] == [1]


class TestUpdates:
    """SimplePush in the funnel: what a version leaves behind on a connection node."""

    def of(self, office: Office, version: int) -> str:
        return office.hashes.mid(f"{CHANNEL.hex()}:{version}", NOW_MS // 1000)

    def milestones(self, office: Office) -> list[tuple[str, str]]:
        kinds = (
            events.PushStored,
            events.PushRetrieved,
            events.PushTransmitted,
            events.PushDelivered,
            events.PushErrored,
            events.PushSuperseded,
        )
        return [
            (type(event).__name__, event.mid)
            for event in office.sink.events
            if isinstance(event, kinds)
        ]

    async def connected(self, office: Office) -> Peer:
        await office.house.knows(router_type="simplepush")
        return office.house.greeted(use_webpush=False)

    async def test_a_direct_one_is_told_of_from_the_socket_to_its_ack(self, office: Office) -> None:
        peer = await self.connected(office)
        await office.house.driver.push(UAID, update(5, accepted_at_ms=NOW_MS))
        peer.say(ack(update(5)))

        mid = self.of(office, 5)
        assert self.milestones(office) == [("PushTransmitted", mid), ("PushDelivered", mid)]
        assert [event.path for event in office.told(events.PushTransmitted)] == [0]

    async def test_a_stored_one_is_told_of_from_its_retrieval_to_its_ack(
        self, office: Office
    ) -> None:
        peer = await self.connected(office)
        await office.house.store.inner.save_update(UAID, update(5, accepted_at_ms=NOW_MS))
        await office.house.driver.check_stored(UAID)
        peer.say(ack(update(5)))
        await office.house.settle()

        mid = self.of(office, 5)
        assert self.milestones(office) == [
            ("PushRetrieved", mid),
            ("PushTransmitted", mid),
            ("PushDelivered", mid),
        ]
        assert [event.path for event in office.told(events.PushTransmitted)] == [1]

    async def test_one_that_is_handed_back_is_stored_and_ends_an_older_one(
        self, office: Office
    ) -> None:
        peer = await self.connected(office)
        await office.house.driver.push(UAID, update(6, accepted_at_ms=NOW_MS))
        await office.house.store.inner.save_update(UAID, update(5, accepted_at_ms=NOW_MS))
        peer.vanish()
        await office.house.settle()

        assert self.milestones(office)[1:] == [
            ("PushStored", self.of(office, 6)),
            ("PushSuperseded", self.of(office, 5)),
        ]

    async def test_one_whose_channel_ends_has_come_to_its_end(self, office: Office) -> None:
        peer = await self.connected(office)
        await office.house.driver.push(UAID, update(5, accepted_at_ms=NOW_MS))
        peer.say({"messageType": "unregister", "channelID": dashed(CHANNEL)})
        await office.house.settle()

        assert self.milestones(office)[1:] == [("PushErrored", self.of(office, 5))]

    async def test_one_of_unknown_time_leaves_no_event(self, office: Office) -> None:
        peer = await self.connected(office)
        await office.house.driver.push(UAID, update(5))
        peer.say(ack(update(5)))
        await office.house.store.inner.save_update(UAID, update(6))
        await office.house.driver.check_stored(UAID)
        peer.vanish()
        await office.house.settle()

        assert self.milestones(office) == []
