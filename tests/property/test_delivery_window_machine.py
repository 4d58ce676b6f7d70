"""The delivery window beside a model: an endpoint that stores what is refused, and a store.

Whatever is posted, acked, read and unsubscribed, in whatever order: never more than the window
outstanding, nothing sent twice while it is outstanding, nothing lost, no look forgotten.
"""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from waystation.push.connect import effects as do
from waystation.push.connect.effects import Effect
from waystation.push.connect.window import DeliveryWindow
from waystation.push.model import ChannelId, MessageId, Notification, SortKey
from waystation.push.wire.client_messages import AckUpdate

CHANNELS = [ChannelId(bytes([n]) * 16) for n in range(3)]
BATCH_MAX = 4


class WindowBesideModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.rows: dict[MessageId, Notification] = {}  # the store
        self.on_the_way: list[Notification] = []  # refused; the endpoint is about to store it
        self.reading: list[Notification] | None = None  # what the store found for us
        self.forgetting: list[list[Notification]] = []  # deletions that are not confirmed
        self.unacked: dict[MessageId, Notification] = {}  # what the user agent has not acked
        self.journal: dict[MessageId, Notification] = {}
        self.ended: set[MessageId] = set()  # acked, dropped with the channel, or TTL 0
        self.fleeting: list[MessageId] = []  # TTL 0, sent and not acked
        self.posted: dict[MessageId, Notification] = {}
        self.reminded = False  # refused or told since the last look began

    @initialize(unacked_max=st.sampled_from([1, 2, 3, 128]))
    def begin(self, unacked_max: int) -> None:
        self.unacked_max = unacked_max
        self.window = DeliveryWindow(unacked_max=unacked_max)
        self.told()

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case do.DeliverStored(notifications):
                    assert notifications
                    for notification in notifications:
                        self.sent(notification)
                case do.Settle(notification, code):
                    assert isinstance(notification, Notification)
                    if code == do.DROPPED:
                        self.journal.pop(notification.message_id, None)
                    elif notification.ttl_s:
                        del self.journal[notification.message_id]
                    else:
                        self.fleeting.remove(notification.message_id)
                    if code:
                        self.ended.add(notification.message_id)
                case do.Forget(acked):
                    self.forgetting.append([notification for notification, _ in acked])
                case do.Fetch(limit):
                    assert self.reading is None
                    self.reminded = False
                    found = sorted(self.rows.values(), key=lambda row: row.sort_key)
                    self.reading = found[:limit]
                case _:
                    raise AssertionError(effect)

    def sent(self, notification: Notification) -> None:
        assert notification.message_id not in self.unacked, "sent twice while outstanding"
        self.unacked[notification.message_id] = notification

    def look(self) -> None:
        idle = not self.unacked and not self.forgetting and self.reading is None
        effects = self.window.look(BATCH_MAX)
        if idle and self.reminded:
            assert effects, "a look was forgotten"
        if not idle:
            assert effects == []
        self.perform(effects)

    # What app servers and endpoint nodes do

    @rule(channel=st.sampled_from(CHANNELS), ttl_s=st.sampled_from([0, 300, 300]))
    def post(self, channel: ChannelId, ttl_s: int) -> None:
        self.count += 1
        notification = Notification(
            channel_id=channel,
            message_id=MessageId(f"m{self.count}"),
            sort_key=SortKey(f"02:{self.count:06}"),
            accepted_at_ms=0,
            ttl_s=ttl_s,
        )
        self.posted[notification.message_id] = notification
        self.push(notification)

    def push(self, notification: Notification) -> None:
        message_id = notification.message_id
        match self.window.direct(notification):
            case do.Direct.REFUSED:
                self.reminded = True
                if notification.ttl_s:
                    self.on_the_way.append(notification)
                else:
                    self.ended.add(message_id)
            case do.Direct.SENT:
                self.sent(notification)
                if notification.ttl_s:
                    self.journal[message_id] = notification
                else:
                    self.unacked.pop(message_id)
                    self.ended.add(message_id)
                    self.fleeting.append(message_id)
            case do.Direct.OUTSTANDING:
                pass

    @precondition(lambda self: self.journal)
    @rule(data=st.data())
    def post_again_and_store(self, data: st.DataObject) -> None:
        """The endpoint did not hear our answer: it asks again, or stores as well."""
        message_id = data.draw(st.sampled_from(sorted(self.journal)))
        if data.draw(st.booleans()):
            assert self.window.direct(self.journal[message_id]) is do.Direct.OUTSTANDING
        else:
            self.on_the_way.append(self.journal[message_id])

    @precondition(lambda self: self.on_the_way)
    @rule()
    def store_and_tell(self) -> None:
        notification = self.on_the_way.pop(0)
        self.rows[notification.message_id] = notification
        self.ended.discard(notification.message_id)  # acked before it was stored: comes again
        self.told()

    @rule()
    def told(self) -> None:
        now = self.window.check()
        assert now == (not self.unacked and self.reading is None) or self.forgetting
        self.reminded = True
        self.look()

    @rule()
    def congested(self) -> None:
        self.window.refuse()
        self.reminded = True
        self.look()

    # What the store does

    @precondition(lambda self: self.reading is not None)
    @rule()
    def read(self) -> None:
        rows, self.reading = self.reading, None
        assert rows is not None
        self.perform(self.window.read(rows))
        self.look()

    @precondition(lambda self: self.forgetting)
    @rule()
    def forgotten(self) -> None:
        rows = self.forgetting.pop(0)
        for row in rows:
            self.rows.pop(row.message_id, None)
            self.ended.add(row.message_id)
        self.window.forgotten(len(rows))
        self.look()

    # What the user agent does

    @precondition(lambda self: self.unacked)
    @rule(data=st.data(), extra=st.booleans())
    def ack(self, data: st.DataObject, extra: bool) -> None:
        some = st.sets(st.sampled_from(sorted(self.unacked)), min_size=1, max_size=3)
        ids = sorted(data.draw(some)) + (["m0", "m0", *self.fleeting[-1:]] if extra else [])
        effects = self.window.acked([AckUpdate(version=message_id) for message_id in ids])
        for message_id in ids:
            self.unacked.pop(MessageId(message_id), None)
        self.perform(effects)
        self.look()

    @rule(channel=st.sampled_from(CHANNELS))
    def unsubscribe(self, channel: ChannelId) -> None:
        """The store forgets its rows; a read under way may still bring them."""
        for rows in (self.rows, self.unacked):
            for message_id in [key for key, row in rows.items() if row.channel_id == channel]:
                del rows[message_id]
        self.on_the_way = [row for row in self.on_the_way if row.channel_id != channel]
        for message_id, notification in self.posted.items():
            if notification.channel_id == channel:
                self.ended.add(message_id)
        self.perform(self.window.drop_channel(channel))
        self.look()

    # What holds at any time

    @invariant()
    def never_more_than_the_window_and_a_batch_are_outstanding(self) -> None:
        directs = self.window.unacked_directs
        assert len(directs) <= self.unacked_max
        assert self.window.unacked == len(self.unacked)
        assert self.window.unacked - len(directs) <= BATCH_MAX + self.unacked_max

    @invariant()
    def what_would_be_handed_back_is_what_the_journal_holds(self) -> None:
        directs = {one.message_id for one in self.window.unacked_directs}
        assert directs == self.journal.keys()

    @invariant()
    def nothing_is_lost(self) -> None:
        kept = self.rows.keys() | self.journal.keys() | {one.message_id for one in self.on_the_way}
        assert self.posted.keys() == kept | self.ended

    def teardown(self) -> None:
        """Left alone, with every ack given and every answer come, nothing is left anywhere."""
        for _ in range(20 * (self.count + 3)):
            if self.reading is not None:
                self.read()
            elif self.forgetting:
                self.forgotten()
            elif self.unacked:
                ids = list(self.unacked)
                effects = self.window.acked([AckUpdate(version=one) for one in ids])
                self.unacked.clear()
                self.perform(effects)
                self.look()
            elif self.on_the_way:
                self.store_and_tell()
        assert not self.rows
        assert not self.journal
        assert self.window.pass_over


TestWindow = WindowBesideModel.TestCase
TestWindow.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)


def test_the_model_sees_a_window_that_forgets() -> None:
    """Guards the model itself: a window that loses its reminder must be noticed."""
    machine = WindowBesideModel()
    machine.begin(unacked_max=1)
    machine.read()
    machine.post(CHANNELS[0], 300)
    machine.post(CHANNELS[0], 300)
    machine.window._check_needed = False
    effects = machine.window.acked([AckUpdate(version="m1")])
    machine.unacked.clear()
    machine.perform(effects)

    with pytest.raises(AssertionError, match="a look was forgotten"):
        machine.look()
