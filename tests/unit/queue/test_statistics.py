"""Counters of the queue server by name; events identify no queue and no client."""

import datetime as dt

import msgspec
import pytest

from waystation.base.clock import ManualClock
from waystation.queue.active_queues import EXACT_MAX, ActiveQueues, Distinct, fold
from waystation.queue.daily_log import DailyLog
from waystation.queue.errors import Blocked, Code, Fault
from waystation.queue.model import (
    AuthKey,
    Blocking,
    BlockReason,
    BoxKey,
    CorrId,
    DhKey,
    EntityId,
    KeyKind,
    Message,
    MessageId,
    Notifier,
    NotifierId,
    Queue,
    RecipientId,
    SenderId,
)
from waystation.queue.slot_totals import SlotTotals
from waystation.queue.statistics import Outcome, Statistics
from waystation.queue.store import Counts
from waystation.queue.wire import commands as c
from waystation.queue.wire import responses as r
from waystation.queue.wire.transmission import Transmission
from waystation.telemetry import events
from waystation.telemetry.contract import KINDS
from waystation.telemetry.events import RecordedEvents
from waystation.telemetry.hashes import EventHashes
from waystation.telemetry.metrics import Metrics

KEY = AuthKey(KeyKind.ED25519, bytes(32))
NOTIFIER = Notifier(NotifierId(b"n" * 24), KEY, BoxKey(bytes(32)))
QUEUE = Queue(
    recipient_id=RecipientId(b"\x12\x3f" + bytes(22)),
    recipient_keys=(KEY,),
    box_key=BoxKey(bytes(32)),
    sender_id=SenderId(b"s" * 24),
)
SECURED = msgspec.structs.replace(QUEUE, sender_key=KEY)
NOTIFIED = msgspec.structs.replace(QUEUE, notifier=NOTIFIER)
SLOT = 0x123
MONDAY = dt.date(2026, 6, 1)  # and the first of a month
TUESDAY = dt.date(2026, 6, 2)
STORED = Counts(queues=7, messages=11, notifiers=3)
MESSAGE = Message(MessageId(b"m" * 24), 1, False, b"body")
BLOCKED = Blocked(Blocking(BlockReason.SPAM))
SEND = c.Send(False, b"12345")

COLUMNS = {
    1: "fromTime", 2: "qCreated", 3: "qSecured", 4: "qDeletedAll", 5: "msgSent", 6: "msgRecv",
    10: "msgSentNtf", 11: "msgRecvNtf", 17: "msgExpired", 18: "qDeletedNew", 19: "qDeletedSecured",
    40: "pMsgFwdsRecv", 41: "qSub", 42: "qSubAuth", 43: "qSubDuplicate", 44: "qSubProhibited",
    45: "msgSentAuth", 46: "msgSentQuota", 47: "msgSentLarge", 48: "msgNtfs", 49: "msgNtfNoSub",
    50: "msgNtfLost", 52: "msgRecvGet", 53: "msgGet", 54: "msgGetNoMsg", 55: "msgGetAuth",
    56: "msgGetDuplicate", 57: "msgGetProhibited", 62: "ntfCreated", 63: "ntfDeleted", 64: "ntfSub",
    65: "ntfSubAuth", 66: "ntfSubDuplicate", 68: "qDeletedAllB", 69: "qSubAllB", 70: "qSubEnd",
    71: "qSubEndB", 72: "ntfDeletedB", 73: "ntfSubB", 74: "msgNtfsB", 75: "msgNtfExpired",
}  # fmt: skip


class World:
    def __init__(self, *, trace: bool = False) -> None:
        self.clock = ManualClock()
        self.sink = RecordedEvents()
        hashes = EventHashes(bytes(32)) if trace else None
        self.totals = SlotTotals(self.sink, self.clock, trace=hashes)
        self.metrics = Metrics()
        self.statistics = Statistics(self.metrics, self.totals)
        self.daily = DailyLog(self.statistics, TUESDAY)

    def answered(
        self, command: c.Command, response: r.Response | Fault, queue: Queue | None = QUEUE
    ) -> None:
        sent = Transmission(CorrId(b"c"), EntityId(b"\xff\xff" + bytes(22)), command)
        said = response if isinstance(response, r.Response) else r.Err(response)
        self.statistics.answered(sent, queue, said)

    def counted(self) -> dict[str, int]:
        """What is not zero since the last row."""
        return {name: n for name in self.statistics.cells if (n := self.daily.since(name))}

    def told(self) -> list[events.Event]:
        self.totals.tell()
        told, self.sink.events = self.sink.events, []
        return told


@pytest.fixture
def world() -> World:
    return World()


IDS = r.Ids(QUEUE.recipient_id, QUEUE.sender_id, DhKey(bytes(32)))
IDS_NOTIFIER = msgspec.structs.replace(
    IDS, notifier=r.NewNotifierIds(NOTIFIER.notifier_id, DhKey(bytes(32)))
)
NEW = c.New(KEY, DhKey(bytes(32)))
NKEY = c.Nkey(KEY, DhKey(bytes(32)))


@pytest.mark.parametrize(
    "command, queue, response, counted",
    [
        (NEW, None, IDS, {"qCreated": 1}),
        (NEW, None, IDS_NOTIFIER, {"qCreated": 1, "ntfCreated": 1}),
        (NEW, None, Code.AUTH, {"qRefused": 1}),
        (c.Key(KEY), QUEUE, r.OK, {"qSecured": 1}),
        (c.Key(KEY), SECURED, r.OK, {}),
        (c.Skey(KEY), QUEUE, Code.AUTH, {}),
        (c.Del(), QUEUE, r.OK, {"qDeletedAll": 1, "qDeletedNew": 1}),
        (c.Del(), SECURED, r.OK, {"qDeletedAll": 1, "qDeletedSecured": 1}),
        (c.Off(), QUEUE, r.OK, {"qSuspended": 1}),
        (SEND, QUEUE, r.OK, {"msgSent": 1}),
        (c.Send(True, b""), QUEUE, r.OK, {"msgSent": 1, "msgSentNtf": 1}),
        (SEND, None, Code.AUTH, {"msgSentAuth": 1}),
        (SEND, QUEUE, Code.QUOTA, {"msgSentQuota": 1}),
        (SEND, QUEUE, Code.LARGE_MSG, {"msgSentLarge": 1}),
        (SEND, QUEUE, BLOCKED, {"msgSentBlocked": 1}),
        (c.Sub(), QUEUE, r.SUBSCRIBED, {"qSubAll": 1}),
        (c.Sub(), None, Code.AUTH, {"qSubAuth": 1}),
        (c.Sub(), QUEUE, Code.CMD_PROHIBITED, {"qSubProhibited": 1}),
        (c.Get(), QUEUE, r.Msg(MESSAGE.message_id, b""), {"msgGet": 1}),
        (c.Get(), QUEUE, r.OK, {"msgGetNoMsg": 1}),
        (c.Get(), None, Code.AUTH, {"msgGetAuth": 1}),
        (c.Get(), QUEUE, Code.CMD_PROHIBITED, {"msgGetProhibited": 1}),
        (NKEY, QUEUE, r.Nid(NOTIFIER.notifier_id, DhKey(bytes(32))), {"ntfCreated": 1}),
        (NKEY, QUEUE, Code.AUTH, {}),
        (c.Ndel(), QUEUE, r.OK, {"ntfDeleted": 1}),
        (c.Nsub(), QUEUE, r.SUBSCRIBED, {"ntfSub": 1}),
        (c.Nsub(), None, Code.AUTH, {"ntfSubAuth": 1}),
        (c.Ping(), None, r.PONG, {}),
    ],
)
def test_what_an_answer_counts(
    world: World,
    command: c.Command,
    queue: Queue | None,
    response: r.Response | Fault,
    counted: dict[str, int],
) -> None:
    """Q-111"""
    world.answered(command, response, queue)

    assert world.counted() == counted


def test_what_else_is_counted(world: World) -> None:
    """Q-111"""
    statistics = world.statistics
    batch = [Transmission(CorrId(b""), EntityId(b""), kind) for kind in (c.Sub(), c.Sub(), c.Del())]
    for command in (c.Sub(), c.Get(), c.Nsub()):
        statistics.repeated(command)
    statistics.worked_through(batch)
    statistics.delivered(QUEUE.slot, MESSAGE, waited=True)
    statistics.delivered(QUEUE.slot, MESSAGE, waited=False)
    statistics.acknowledged(QUEUE, MESSAGE, 1.5, got=False)
    statistics.acknowledged(QUEUE, Message(MESSAGE.message_id, 1, True, b""), 0.1, got=True)
    statistics.acknowledged(QUEUE, Message(MESSAGE.message_id, 1), 0.1, got=False)  # a marker
    statistics.acknowledged(QUEUE, None, 0.1, got=False)
    statistics.expired(QUEUE.slot, 5)
    statistics.subscription_ended(QUEUE.slot)
    statistics.notified(sent=3)
    statistics.notified(lost=1, kept=1)
    statistics.notified(expired=2)
    statistics.relay_asked(Outcome.SUCCESS, own=False)
    statistics.passed_on(Outcome.CONNECT, own=True)
    statistics.taken_in()

    assert world.counted() == {
        "qSubDuplicate": 1, "msgGetDuplicate": 1, "ntfSubDuplicate": 1, "qSubAllB": 1,
        "qDeletedAllB": 1, "qSub": 1, "msgRecv": 2, "msgRecvGet": 1, "msgRecvNtf": 1,
        "msgExpired": 5, "qSubEnd": 1, "qSubEndB": 1, "msgNtfs": 3, "msgNtfsB": 1, "msgNtfLost": 1,
        "msgNtfNoSub": 1, "msgNtfExpired": 2, "pRelays_success": 1, "pMsgFwdsOwn_connect": 1,
        "pMsgFwdsRecv": 1,
    }  # fmt: skip


def test_the_same_numbers_are_metrics(world: World) -> None:
    world.answered(SEND, r.OK)
    world.statistics.acknowledged(QUEUE, MESSAGE, 0.2, got=False)
    world.statistics.opened()

    assert world.metrics.counter("queue_messages", event="sent").value == 1
    assert world.metrics.counter("queue_message_bytes").value == 5
    assert world.metrics.counter("queue_messages", event="received").value == 1
    assert world.metrics.counter("queue_sockets", event="opened").value == 1
    assert world.metrics.histogram("queue_ack_seconds").sum == pytest.approx(0.2)


def test_events_are_totals_of_a_slot(world: World) -> None:
    for _ in range(3):
        world.answered(SEND, r.OK)
    world.answered(SEND, Code.QUOTA)
    world.answered(SEND, Code.AUTH, None)
    world.answered(c.Send(True, b"12"), r.OK, NOTIFIED)
    world.statistics.delivered(QUEUE.slot, MESSAGE, waited=False)
    world.statistics.acknowledged(QUEUE, MESSAGE, 2.0, got=False)
    world.statistics.acknowledged(QUEUE, MESSAGE, 4.0, got=False)
    world.statistics.expired(QUEUE.slot, 9)

    assert world.sink.events == [events.QueueExpired(slot=SLOT, n=9)]
    told = world.told()
    assert events.QueueSend(slot=SLOT, size=17, code=0, n=4) in told
    assert events.QueueSend(slot=SLOT, size=5, code=2) in told
    assert events.QueueSend(slot=0xFFF, size=5, code=1) in told
    assert events.QueueNotify(slot=SLOT, code=0) in told
    assert events.QueueDeliver(slot=SLOT, size=4) in told
    assert events.QueueAck(slot=SLOT, n=2, dur=3_000_000) in told
    assert world.told() == []


EVENTFUL = [
    (NEW, IDS_NOTIFIER, None, {100, 111}),
    (c.Sub(), r.SUBSCRIBED, QUEUE, {101}),
    (c.Skey(KEY), r.OK, QUEUE, {102}),
    (SEND, BLOCKED, QUEUE, {103}),
    (c.Get(), r.OK, QUEUE, {106}),
    (c.Del(), r.OK, QUEUE, {107}),
    (c.Off(), r.OK, QUEUE, {108}),
    (NKEY, Code.AUTH, QUEUE, {111}),
    (c.Send(True, b""), r.OK, NOTIFIED, {103, 112}),
    (NEW, Code.AUTH, None, set[int]()),
    (SEND, Code.INTERNAL, QUEUE, {103}),
]


@pytest.mark.parametrize("trace", [False, True], ids=["totals", "trace"])
@pytest.mark.parametrize("command, response, queue, kinds", EVENTFUL)
def test_every_event_has_the_columns_of_its_contract(
    trace: bool,
    command: c.Command,
    response: r.Response | Fault,
    queue: Queue | None,
    kinds: set[int],
) -> None:
    world = World(trace=trace)
    world.answered(command, response, queue)

    told = world.told()

    assert {event.k for event in told} == kinds
    for event in told:
        columns = msgspec.to_builtins(event)
        kind = KINDS[event.k]
        assert set(kind.required) <= set(columns)
        assert set(columns) <= {*kind.required, *kind.optional}
        assert trace or "qh" not in columns
        assert not trace or columns.get("qh") is not None or queue is None or event.k == 111


def test_a_row_has_96_columns_each_in_its_place(world: World) -> None:
    """Q-111"""
    for value, name in COLUMNS.items():
        if name != "fromTime":
            world.statistics.cells[name].value += value

    columns = world.daily.row(TUESDAY, STORED, notifications=13).split(",")

    assert len(columns) == 96
    assert columns[0] == "2026-06-02"
    for number, name in COLUMNS.items():
        assert name == "fromTime" or columns[number - 1] == str(number), name
    assert (columns[14], columns[15], columns[60], columns[66]) == ("7", "11", "7", "3")
    assert columns[75] == "13"
    assert {columns[number - 1] for number in (51, 58, 59, 60, *range(77, 97))} == {"0"}
    again = world.daily.row(TUESDAY, STORED, notifications=13).split(",")
    assert {again[number - 1] for number in COLUMNS if number > 1} == {"0"}


def test_relays_of_our_own_are_counted_twice(world: World) -> None:
    for outcome, own in (
        (Outcome.SUCCESS, False),
        (Outcome.SUCCESS, True),
        (Outcome.CONNECT, True),
        (Outcome.COMPAT, False),
    ):
        world.statistics.relay_asked(outcome, own=own)
    world.statistics.passed_on(Outcome.OTHER, own=False)

    columns = world.daily.row(TUESDAY, STORED, notifications=0).split(",")

    assert columns[19:24] == ["4", "2", "1", "1", "0"]
    assert columns[24:29] == ["2", "1", "1", "0", "0"]
    assert columns[29:34] == ["1", "0", "0", "0", "1"]
    assert columns[34:39] == ["0"] * 5


def test_weeks_and_months_show_on_their_days_alone(world: World) -> None:
    """Q-111"""

    def columns(day: dt.date) -> list[str]:
        row = world.daily.row(day, STORED, notifications=0).split(",")
        return row[6:9] + row[11:14]

    world.answered(SEND, r.OK)
    world.statistics.acknowledged(QUEUE, MESSAGE, 0.0, got=False)
    world.answered(c.Send(True, b""), r.OK, SECURED)  # the same queue

    assert columns(TUESDAY) == ["1", "", "", "1", "", ""]
    assert columns(dt.date(2026, 6, 8)) == ["0", "1", "", "0", "1", ""]  # a Monday
    assert columns(dt.date(2026, 7, 1)) == ["0", "", "1", "0", "", "1"]  # a Wednesday
    world.answered(SEND, r.OK)
    assert columns(MONDAY) == ["1", "1", "1", "0", "0", "0"]
    assert columns(MONDAY) == ["0"] * 6


def test_a_restart_goes_on_counting(world: World) -> None:
    """Q-105"""
    world.answered(SEND, r.OK)
    world.answered(c.Send(True, b""), r.OK, SECURED)
    world.statistics.taken_in()
    text = world.daily.dump()
    later = World()
    later.answered(SEND, r.OK)

    odd = later.daily.load(text + "unknown=1\nmsgSent=x\nactiveDay=~00\nactiveYear=1\n")

    assert odd == ["unknown", "msgSent", "activeDay", "activeYear"]
    assert later.counted() == {"msgSent": 3, "msgSentNtf": 1, "pMsgFwdsRecv": 1}
    fresh = World()
    assert fresh.daily.load(text) == []
    assert fresh.daily.row(MONDAY, STORED, notifications=0) == world.daily.row(
        MONDAY, STORED, notifications=0
    )
    assert fresh.daily.began_on == MONDAY


@pytest.mark.parametrize("queues", [0, 1, EXACT_MAX, EXACT_MAX + 1, 60_000])
def test_active_queues_are_counted_exactly_or_nearly(queues: int) -> None:
    distinct = Distinct()
    for number in range(queues):
        distinct.add(fold(number.to_bytes(24, "big")))
        distinct.add(fold(number.to_bytes(24, "big")))
    copied = Distinct()
    copied.load(distinct.dump())

    if queues <= EXACT_MAX:
        assert distinct.count() == queues
    else:
        assert distinct.count() == pytest.approx(queues, rel=0.06)
        assert len(distinct.dump()) < 10_000
    assert copied.count() == distinct.count()


def test_active_queues_of_other_periods_are_unknown() -> None:
    active = ActiveQueues()
    active.add(1)

    assert list(active.dump("active")) == ["activeDay=1", "activeWeek=1", "activeMonth=1"]
    with pytest.raises(KeyError):
        active.load("Year", "1")
    with pytest.raises(ValueError, match="invalid literal"):
        active.load("Day", "no number")
