import msgspec
import pytest

from tests.unit.push.connect.talk import CHANNEL, OTHER_CHANNEL, notification, of, update
from waystation.push.connect import effects as do
from waystation.push.connect.effects import Effect
from waystation.push.connect.window import DeliveryWindow
from waystation.push.model import Notification
from waystation.push.wire.client_messages import AckUpdate


def window(unacked_max: int = 128) -> DeliveryWindow:
    return DeliveryWindow(unacked_max=unacked_max)


def ack(window: DeliveryWindow, *acked: Notification, code: int | None = None) -> list[Effect]:
    return window.acked([AckUpdate(version=one.message_id, code=code) for one in acked])


def reading(window: DeliveryWindow) -> DeliveryWindow:
    assert window.check()
    assert window.look(10) == [do.Fetch(10)]
    return window


class TestDirect:
    def test_a_direct_notification_is_delivered_and_owed(self) -> None:
        its, one = window(), notification(1)

        assert its.direct(one) is do.Direct.SENT
        assert its.unacked == 1
        assert its.unacked_directs == [one]

    def test_fifty_without_an_ack_are_delivered_in_order(self) -> None:
        """C-043, C-061"""
        its, sent = window(), [notification(n) for n in range(50)]

        assert all(its.direct(one) is do.Direct.SENT for one in sent)

    def test_as_many_as_the_window_allows_are_taken_and_then_no_more(self) -> None:
        its = window(3)
        taken = [its.direct(notification(n)) is do.Direct.SENT for n in range(5)]

        assert taken == [True, True, True, False, False]

    def test_a_window_of_one_refuses_while_anything_is_unacked(self) -> None:
        """C-070"""
        its = window(1)
        its.direct(notification(1))

        assert its.direct(notification(2)) is do.Direct.REFUSED
        assert ack(its, notification(1)) == [do.Settle(notification(1), 100)]
        assert its.look(10) == [do.Fetch(10)]

    def test_a_window_of_one_refuses_while_a_stored_one_is_unacked(self) -> None:
        its = reading(window(1))
        its.read([notification(1)])

        assert its.direct(notification(2)) is do.Direct.REFUSED

    def test_a_window_of_one_takes_one_during_a_storage_read(self) -> None:
        """C-071"""
        its = reading(window(1))

        assert its.direct(notification(2)) is do.Direct.SENT

    def test_after_a_refusal_all_are_refused_until_storage_was_looked_at(self) -> None:
        """What was stored must not wait behind a stream of newer ones."""
        its = window(2)
        its.direct(notification(1))
        its.direct(notification(2))
        assert its.direct(notification(3)) is do.Direct.REFUSED
        ack(its, notification(1))

        assert its.direct(notification(4)) is do.Direct.REFUSED
        ack(its, notification(2))
        assert its.look(10) == [do.Fetch(10)]
        assert its.direct(notification(5)) is not do.Direct.REFUSED

    def test_ttl_zero_is_sent_and_forgotten(self) -> None:
        """C-039"""
        its = window(1)
        fleeting = notification(1, ttl_s=0)

        assert its.direct(fleeting) is do.Direct.SENT
        assert its.unacked == 0
        assert its.unacked_directs == []
        assert its.direct(notification(2)) is not do.Direct.REFUSED

    def test_one_that_is_outstanding_already_is_taken_and_not_sent_again(self) -> None:
        """A node that was slow to answer may get it again, or find it in storage first."""
        its = reading(window())
        its.direct(notification(1))
        its.read([notification(2)])

        assert its.direct(notification(1)) is do.Direct.OUTSTANDING
        assert its.direct(notification(2)) is do.Direct.OUTSTANDING
        assert its.unacked == 2

    def test_a_simplepush_update_is_refused(self) -> None:
        assert window().direct(update(5)) is do.Direct.REFUSED


class TestAcks:
    def test_an_ack_of_ttl_zero_is_known_once(self) -> None:
        """It changes nothing, but a report would take the notification for lost."""
        its = window()
        fleeting = notification(1, ttl_s=0)
        its.direct(fleeting)
        its.direct(notification(2))

        remembered = msgspec.structs.replace(fleeting, data=None)
        assert ack(its, fleeting) == [do.Settle(remembered, 100)]
        assert ack(its, fleeting) == []
        assert its.direct_acked == 1
        assert its.unacked == 1

    def test_of_those_with_ttl_zero_only_the_latest_are_remembered(self) -> None:
        its = window(2)
        fleeting = [notification(n, ttl_s=0) for n in range(3)]
        for each in fleeting:
            its.direct(each)

        latest = [msgspec.structs.replace(each, data=None) for each in fleeting[1:]]
        assert ack(its, *fleeting) == [do.Settle(each, 100) for each in latest]

    def test_an_ack_settles_a_direct_one(self) -> None:
        """C-041"""
        its = window()
        its.direct(notification(1))

        assert ack(its, notification(1)) == [do.Settle(notification(1), 100)]
        assert its.unacked == 0

    def test_an_ack_of_code_zero_is_an_ack(self) -> None:
        its = window()
        its.direct(notification(1))

        assert ack(its, notification(1), code=0) == [do.Settle(notification(1), 100)]
        assert its.direct_acked == 1

    def test_an_ack_forgets_a_stored_one(self) -> None:
        its = reading(window())
        its.read([notification(1)])

        assert ack(its, notification(1)) == [do.Forget([(notification(1), 100)])]
        assert its.stored_acked == 1

    def test_rows_acked_in_one_message_are_deleted_in_one_call(self) -> None:
        """C-047"""
        its = reading(window())
        its.read([notification(1), notification(2)])
        effects = ack(its, notification(2), notification(1))

        assert effects == [do.Forget([(notification(2), 100), (notification(1), 100)])]

    @pytest.mark.parametrize("code", [101, 102, 65_535])
    def test_the_code_of_an_ack_is_passed_on(self, code: int) -> None:
        its = window()
        its.direct(notification(1))

        assert ack(its, notification(1), code=code) == [do.Settle(notification(1), code)]

    def test_repeated_and_foreign_acks_change_nothing(self) -> None:
        """C-031"""
        its = window()
        its.direct(notification(1))
        ack(its, notification(1))

        assert ack(its, notification(1), notification("of somebody else")) == []
        assert its.direct_acked == 1

    def test_an_ack_of_an_older_message_of_a_topic_names_that_very_message(self) -> None:
        """C-086: the store deletes the row only if it still holds it, and the pass goes on."""
        first, second = notification("first", topic="t"), notification("second", topic="t")
        its = reading(window())
        its.read([first])
        effects = ack(its, first)
        its.forgotten(1)

        assert effects == [do.Forget([(first, 100)])]
        assert first.sort_key == second.sort_key
        assert its.look(10) == [do.Fetch(10)]
        assert its.read([second]) == [do.DeliverStored([second])]


class TestLooking:
    def test_nothing_is_read_unless_somebody_says_so(self) -> None:
        assert window().look(10) == []

    def test_an_idle_user_agent_is_looked_at_once(self) -> None:
        """C-083"""
        its = reading(window())

        assert its.look(10) == []
        assert its.read([]) == []
        assert its.look(10) == []

    def test_told_while_busy_it_looks_when_nothing_is_unacked(self) -> None:
        """C-083"""
        its = window()
        its.direct(notification(1))

        assert not its.check()
        assert its.look(10) == []
        ack(its, notification(1))
        assert its.look(10) == [do.Fetch(10)]

    def test_told_while_reading_it_reads_once_more(self) -> None:
        its = reading(window())
        assert not its.check()
        its.read([])

        assert its.look(10) == [do.Fetch(10)]
        its.read([])
        assert its.look(10) == []

    def test_refused_with_nothing_unacked_it_looks_at_once(self) -> None:
        """There will be no ack to remind us."""
        its = window()
        its.refuse()

        assert its.look(10) == [do.Fetch(10)]
        assert its.direct(notification(1)) is not do.Direct.REFUSED

    def test_the_next_batch_waits_for_every_ack_and_every_deletion(self) -> None:
        """C-059"""
        its = reading(window())
        its.read([notification(1), notification(2)])
        ack(its, notification(1))
        its.forgotten(1)
        assert its.look(10) == []
        ack(its, notification(2))

        assert its.look(10) == []
        its.forgotten(1)
        assert its.look(10) == [do.Fetch(10)]

    def test_the_next_batch_waits_for_directs_too(self) -> None:
        its = reading(window())
        its.read([notification(1)])
        its.direct(notification(2))
        ack(its, notification(1))
        its.forgotten(1)
        assert its.look(10) == []
        ack(its, notification(2))

        assert its.look(10) == [do.Fetch(10)]

    def test_a_pass_goes_on_until_nothing_comes(self) -> None:
        its = reading(window())
        for n in range(3):
            its.read([notification(n)])
            assert not its.pass_over
            ack(its, notification(n))
            its.forgotten(1)
            assert its.look(10) == [do.Fetch(10)]
        assert its.sent_in_pass == 3
        its.read([])

        assert its.pass_over
        assert its.sent_in_pass == 0
        assert its.stored_sent == 3

    def test_what_was_sent_directly_while_storage_was_read_is_not_sent_again(self) -> None:
        """The row stands for it from now on: the journal lets go, and its ack deletes the row."""
        its = reading(window())
        its.direct(notification(1))
        effects = its.read([notification(1), notification(2)])

        assert effects == [do.Settle(notification(1), 0), do.DeliverStored([notification(2)])]
        assert its.unacked == 2
        assert its.unacked_directs == []
        assert ack(its, notification(1)) == [do.Forget([(notification(1), 100)])]

    def test_a_read_of_nothing_but_what_is_outstanding_sends_nothing(self) -> None:
        its = reading(window())
        its.direct(notification(1))

        assert of(do.DeliverStored, its.read([notification(1)])) == []
        assert its.unacked == 1


class TestEndedSubscriptions:
    def test_nothing_of_the_channel_is_owed_any_more(self) -> None:
        its = reading(window())
        its.read([notification(1), notification(2, channel_id=OTHER_CHANNEL)])
        its.direct(notification(3))
        its.direct(notification(4, channel_id=OTHER_CHANNEL))

        assert its.drop_channel(CHANNEL) == [
            do.Settle(notification(3), do.DROPPED),
            do.Settle(notification(1), do.DROPPED),
        ]
        assert its.unacked == 2
        assert ack(its, notification(1), notification(3)) == []

    def test_storage_may_be_looked_at_afterwards(self) -> None:
        its = reading(window())
        its.read([notification(1)])
        its.drop_channel(CHANNEL)

        assert its.look(10) == [do.Fetch(10)]

    def test_rows_of_it_that_a_read_still_brings_are_not_sent(self) -> None:
        its = reading(window())
        its.drop_channel(CHANNEL)
        rows = [notification(1), notification(2, channel_id=OTHER_CHANNEL)]

        assert its.read(rows) == [do.DeliverStored(rows[1:])]
        assert its.unacked == 1

    def test_an_ack_under_way_is_still_waited_for(self) -> None:
        its = reading(window())
        its.read([notification(1)])
        ack(its, notification(1))
        its.drop_channel(CHANNEL)

        assert its.look(10) == []
        its.forgotten(1)
        assert its.look(10) == [do.Fetch(10)]


def test_a_stream_of_direct_ones_does_not_keep_storage_waiting() -> None:
    """Told while something is unacked: newer ones are refused until storage has been read."""
    its, first, second = window(), notification(1), notification(2)
    assert its.direct(first) is do.Direct.SENT

    assert not its.check()
    assert its.look(10) == []
    assert its.direct(second) is do.Direct.REFUSED
    ack(its, first)
    assert its.look(10) == [do.Fetch(10)]
    assert its.direct(second) is do.Direct.SENT
