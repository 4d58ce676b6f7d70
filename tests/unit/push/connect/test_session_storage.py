import pytest

from tests.unit.push.connect.talk import (
    CHANNEL,
    NODE,
    UAID,
    Talk,
    ack,
    notification,
    of,
    record,
    returned,
    settled_in,
)
from waystation.base.ids import dashed, simple
from waystation.push.connect import effects as do
from waystation.push.connect.effects import Effect
from waystation.push.connect.session_states import State
from waystation.push.model import Notification


class Shelf:
    """A store of rows for one session: answers its questions until it has none left."""

    def __init__(self, talk: Talk, rows: list[Notification]) -> None:
        self.talk = talk
        self.rows = rows
        self.sent: list[Notification] = []

    def answer(self, effects: list[Effect]) -> list[Effect]:
        """What is left of the effects after the store has answered all it was asked."""
        rest: list[Effect] = []
        for effect in effects:
            match effect:
                case do.Fetch(limit):
                    rest += self.answer(self.talk.session.fetched(self.rows[:limit]))
                case do.Forget(acked):
                    gone = {row.message_id for row, _ in acked}
                    self.rows = [row for row in self.rows if row.message_id not in gone]
                    rest += self.answer(self.talk.session.forgotten(len(acked)))
                case do.DeliverStored(notifications):
                    self.sent += notifications
                case _:
                    rest.append(effect)
        return rest


def catching_up(count: int, **given: object) -> tuple[Shelf, list[Effect]]:
    talk, effects = returned(**given)
    shelf = Shelf(talk, [notification(n) for n in range(count)])
    return shelf, shelf.answer(effects)


class TestCatchingUp:
    def test_at_most_a_batch_is_outstanding_and_all_arrive_in_order(self) -> None:
        """C-059"""
        shelf, _ = catching_up(25)
        acked = 0
        while acked < len(shelf.sent):
            assert len(shelf.sent) - acked <= 10
            shelf.answer(shelf.talk.say(ack(shelf.sent[acked])))
            acked += 1

        assert [row.message_id for row in shelf.sent] == [f"m-{n:05}" for n in range(25)]
        assert shelf.rows == []
        assert shelf.talk.session.closed() == []
        assert shelf.talk.session.stored_acked == 25
        assert shelf.talk.session.stored_retrieved == 25

    @pytest.mark.parametrize("order", [[0, 1], [1, 0]])
    def test_two_acked_in_any_order_are_gone(self, order: list[int]) -> None:
        """C-047"""
        shelf, _ = catching_up(2)
        for index in order:
            shelf.answer(shelf.talk.say(ack(notification(index))))

        assert shelf.rows == []

    def test_of_two_with_one_ack_only_the_other_comes_again(self) -> None:
        """C-049, C-045"""
        shelf, _ = catching_up(2)
        shelf.answer(shelf.talk.say(ack(notification(0))))
        shelf.talk.session.closed()
        again, effects = returned()
        shelf.talk, shelf.sent = again, []
        shelf.answer(effects)

        assert shelf.sent == [notification(1)]
        shelf.answer(again.say(ack(notification(1))))
        assert shelf.rows == []

    def test_unacked_rows_are_left_where_they_are(self) -> None:
        """C-045, C-046: they are stored already, so there is nothing to hand back."""
        shelf, _ = catching_up(2)

        assert shelf.talk.session.closed() == []
        assert len(shelf.rows) == 2

    def test_a_failed_deletion_ends_the_connection_and_the_row_comes_again(self) -> None:
        talk, _ = returned()
        talk.session.fetched([notification(1)])
        (forget,) = talk.say(ack(notification(1)))

        assert talk.session.failed(forget) == [do.Close(1011, "Store")]

    def test_a_failed_read_ends_the_connection(self) -> None:
        talk, effects = returned()

        assert talk.session.failed(effects[-1]) == [do.Close(1011, "Store")]

    def test_a_direct_one_that_comes_while_storage_is_read_is_taken(self) -> None:
        """C-071"""
        talk, _ = returned(delivery_window=1)

        assert talk.session.direct(notification(9)) is do.Direct.SENT
        assert talk.session.fetched([notification(1)]) == [do.DeliverStored([notification(1)])]
        assert talk.session.direct(notification(10)) is do.Direct.REFUSED


class TestBeingTold:
    def test_an_idle_user_agent_is_looked_at_now_and_a_busy_one_later(self) -> None:
        """C-083"""
        talk = settled_in()

        assert talk.session.check_stored() == (True, [do.Fetch(10)])
        talk.session.fetched([notification(1)])
        assert talk.session.check_stored() == (False, [])

    def test_a_congested_user_agent_is_looked_at_when_nothing_is_unacked(self) -> None:
        talk = settled_in()
        talk.session.direct(notification(1))
        assert talk.session.congested() == []

        assert talk.session.direct(notification(2)) is do.Direct.REFUSED
        assert of(do.Fetch, talk.say(ack(notification(1)))) == [do.Fetch(10)]

    def test_a_congested_user_agent_that_owes_nothing_is_looked_at_at_once(self) -> None:
        """Otherwise nothing with TTL 0 would ever reach it again."""
        talk = settled_in()

        assert talk.session.congested() == [do.Fetch(10)]
        assert talk.session.fetched([]) == []
        assert talk.session.direct(notification(1, ttl_s=0)) is not do.Direct.REFUSED


class TestTooManyMessages:
    def test_one_more_than_the_limit_resets_the_user_agent(self) -> None:
        """C-066: those up to the limit arrive; the batch that crosses it does not."""
        shelf, _ = catching_up(21, msg_limit=20)
        rest: list[Effect] = []
        for n in range(20):
            rest += shelf.answer(shelf.talk.say(ack(notification(n))))

        assert len(shelf.sent) == 20
        assert rest == [do.DropUserAgent("too_many_messages")]
        assert shelf.talk.session.dropped() == [do.Close(1000, "SM")]
        assert shelf.talk.session.reset

    def test_the_last_ack_resets_without_another_look(self) -> None:
        """C-066: a user agent that closes right behind it may not come back as it was."""
        shelf, _ = catching_up(21, msg_limit=20)
        for n in range(19):
            shelf.answer(shelf.talk.say(ack(notification(n))))
        effects = shelf.talk.say(ack(notification(19)))

        assert effects[-1] == do.DropUserAgent("too_many_messages")
        shelf.talk.session.closed()
        assert shelf.talk.session.dropped() == []

    @pytest.mark.parametrize("limit, sent", [(5, 0), (9, 0), (10, 10), (15, 10), (25, 20)])
    def test_a_batch_that_crosses_the_limit_does_not_arrive(self, limit: int, sent: int) -> None:
        shelf, _ = catching_up(limit + 1, msg_limit=limit)
        dropped = [
            effect
            for n in range(sent)
            for effect in shelf.answer(shelf.talk.say(ack(notification(n))))
        ]

        assert len(shelf.sent) == sent
        assert shelf.talk.session.state is State.DROPPING
        assert dropped == ([do.DropUserAgent("too_many_messages")] if sent else [])

    def test_exactly_the_limit_resets_nobody(self) -> None:
        """C-067"""
        shelf, _ = catching_up(20, msg_limit=20)
        rest = [
            effect
            for n in range(20)
            for effect in shelf.answer(shelf.talk.say(ack(notification(n))))
        ]

        assert rest == []
        assert shelf.rows == []

    def test_the_limit_is_for_one_catch_up(self) -> None:
        shelf, _ = catching_up(2, msg_limit=2)
        for n in range(2):
            shelf.answer(shelf.talk.say(ack(notification(n))))
        shelf.rows = [notification(7)]
        shelf.answer(shelf.talk.session.check_stored()[1])

        assert shelf.sent[-1] == notification(7)

    def test_without_a_limit_any_number_arrives(self) -> None:
        shelf, _ = catching_up(500, msg_limit=0, stored_batch_max=1000)

        assert len(shelf.sent) == 500

    def test_while_the_record_is_removed_nothing_else_is_begun(self) -> None:
        """C-068: what is posted meanwhile belongs to a user agent that is gone."""
        talk, _ = returned(msg_limit=1)
        dropping = talk.session.fetched([notification(1), notification(2)])

        assert dropping == [do.DropUserAgent("too_many_messages")]
        assert talk.session.state is State.DROPPING
        assert talk.session.busy
        assert talk.session.direct(notification(3)) is do.Direct.REFUSED
        assert talk.session.check_stored() == (False, [])
        assert talk.wake_in_time() == [do.SendPing()]

    def test_a_register_under_way_does_not_disturb_the_reset(self) -> None:
        talk, _ = returned(msg_limit=1)
        talk.say({"messageType": "register", "channelID": dashed(CHANNEL)})
        talk.session.fetched([notification(1), notification(2)])

        assert talk.session.subscribed(applied=True) == []
        assert talk.session.busy
        assert talk.session.dropped() == [do.Close(1000, "SM")]

    def test_a_reset_that_the_store_refuses_ends_the_connection(self) -> None:
        talk, _ = returned(msg_limit=1)
        (drop,) = talk.session.fetched([notification(1), notification(2)])

        assert talk.session.failed(drop) == [do.Close(1011, "Store")]


class TestOldRecords:
    @pytest.mark.parametrize("version", [None, 0])
    def test_an_old_record_is_reset_after_its_messages_were_delivered(
        self, version: int | None
    ) -> None:
        shelf, rest = catching_up(1, found=record(record_version=version))
        assert of(do.DropUserAgent, rest) == []
        rest = shelf.answer(shelf.talk.say(ack(notification(0))))

        assert rest == [do.DropUserAgent("old_record_version")]
        assert shelf.talk.session.dropped() == [do.Close(1000, "SM")]

    def test_a_current_record_is_not_reset(self) -> None:
        _, rest = catching_up(0)

        assert of(do.DropUserAgent, rest) == []


class TestSimplePush:
    def test_stored_versions_are_read_after_hello_all_at_once(self) -> None:
        """C-148"""
        talk = Talk(max_channels_per_uaid=50)
        talk.hello(uaid=simple(UAID), use_webpush=False)
        talk.looked_up(record(router_type="simplepush", node_id=NODE))

        assert of(do.FetchUpdates, talk.claimed()) == [do.FetchUpdates(50)]
