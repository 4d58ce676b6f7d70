from typing import Any

import pytest

from tests.unit.push.connect.talk import (
    OTHER_CHANNEL,
    Talk,
    ack,
    notification,
    settled_in,
    update,
)
from waystation.push.connect import effects as do
from waystation.push.connect.session_states import State


class TestAcks:
    def test_an_acked_direct_notification_is_settled_and_not_handed_back(self) -> None:
        """C-041"""
        talk = settled_in()
        talk.session.direct(notification(1))

        assert talk.say(ack(notification(1))) == [do.Settle(notification(1), 100)]
        assert talk.session.closed() == []
        assert talk.session.direct_acked == 1

    def test_an_unacked_direct_notification_is_handed_back_with_the_same_version(self) -> None:
        """C-040"""
        talk = settled_in()
        talk.session.direct(notification(1))
        talk.session.direct(notification(2, channel_id=OTHER_CHANNEL))
        talk.say(ack(notification(1)))

        assert talk.session.closed() == [
            do.SaveUnacked([notification(2, channel_id=OTHER_CHANNEL)])
        ]
        assert talk.session.handed_back == 1

    def test_a_notification_with_ttl_zero_is_never_handed_back(self) -> None:
        """C-039"""
        talk = settled_in()
        fleeting = notification(1, ttl_s=0)

        assert talk.session.direct(fleeting) is do.Direct.SENT
        assert talk.session.closed() == []

    def test_each_channel_gets_its_own(self) -> None:
        """C-042"""
        talk = settled_in()
        both = [notification(1), notification(2, channel_id=OTHER_CHANNEL)]

        assert [talk.session.direct(one) for one in both] == [do.Direct.SENT] * 2

    def test_a_topic_is_delivered_like_any_other(self) -> None:
        """C-036"""
        talk = settled_in()
        topical = notification(1, topic="news")

        assert talk.session.direct(topical) is do.Direct.SENT

    @pytest.mark.parametrize(
        "updates", [None, [], {}, "all", 7, [7], [{}], [{"version": None}], [{"code": 100}]]
    )
    def test_an_ack_that_cannot_be_read_is_an_ack_of_nothing(self, updates: Any) -> None:
        """C-031"""
        talk = settled_in()
        talk.session.direct(notification(1))

        assert talk.say({"messageType": "ack", "updates": updates}) == []
        assert talk.session.state is State.IDENTIFIED
        assert talk.session.closed() == [do.SaveUnacked([notification(1)])]

    def test_an_ack_without_updates_is_an_ack_of_nothing(self) -> None:
        """C-031"""
        assert settled_in().say({"messageType": "ack"}) == []

    def test_an_ack_for_an_unknown_version_is_harmless(self) -> None:
        """C-031"""
        assert settled_in().say(ack("nobody's")) == []

    @pytest.mark.parametrize("code", [100, 101, 102])
    def test_the_code_says_how_it_ended(self, code: int) -> None:
        """C-158"""
        talk = settled_in()
        talk.session.direct(notification(1))

        assert talk.say(ack(notification(1), code=code)) == [do.Settle(notification(1), code)]

    def test_the_window_of_one_opens_with_the_ack_and_storage_is_read(self) -> None:
        """C-070"""
        talk = settled_in(delivery_window=1)
        talk.session.direct(notification(1))
        assert talk.session.direct(notification(2)) is do.Direct.REFUSED
        effects = talk.say(ack(notification(1)))

        assert effects == [do.Settle(notification(1), 100), do.Fetch(10)]
        assert talk.session.fetched([notification(2)]) == [do.DeliverStored([notification(2)])]


class TestNacks:
    @pytest.mark.parametrize("code, counted", [(301, 301), (302, 302), (303, 303), (7, 0)])
    def test_a_nack_is_counted_and_changes_nothing(self, code: int, counted: int) -> None:
        """C-032"""
        talk = settled_in()
        talk.session.direct(notification(1))
        effects = talk.say({"messageType": "nack", "version": "m-00001", "code": code})

        assert effects == [do.Nacked("m-00001", counted)]
        assert talk.session.nacks == 1
        assert talk.session.closed() == [do.SaveUnacked([notification(1)])]

    def test_a_nack_without_a_code_counts_as_zero(self) -> None:
        """C-032"""
        assert settled_in().say({"messageType": "nack", "version": "m"}) == [do.Nacked("m", 0)]

    def test_a_nack_without_a_version_ends_the_connection(self) -> None:
        """C-032"""
        assert settled_in().say({"messageType": "nack"}) == [do.Close(1011, "Json")]


class TestSimplePush:
    def greeted(self) -> Talk:
        talk = Talk()
        talk.hello(use_webpush=False)
        return talk

    def test_versions_are_delivered_and_acked_as_numbers(self) -> None:
        """C-147, C-151"""
        talk = self.greeted()

        assert talk.session.direct(update(5, data="hi")) is do.Direct.SENT
        assert talk.say(ack(update(5))) == [do.Settle(update(5, data="hi"), 100)]

    def test_unacked_versions_are_handed_back(self) -> None:
        talk = self.greeted()
        talk.session.direct(update(5))

        assert talk.session.closed() == [do.SaveUnacked([update(5)])]

    def test_the_other_protocols_notifications_are_refused(self) -> None:
        """C-152"""
        assert self.greeted().session.direct(notification(1)) is do.Direct.REFUSED
        assert settled_in().session.direct(update(1)) is do.Direct.REFUSED

    def test_an_ack_of_an_older_version_leaves_the_newer_one_in_storage(self) -> None:
        """C-149"""
        talk = self.greeted()
        assert talk.session.check_stored() == (True, [do.FetchUpdates(1000)])
        talk.session.fetched_updates([update(5)])
        assert talk.session.check_stored() == (False, [])  # 7 has been stored
        forget = talk.say(ack(update(5)))

        assert forget == [do.ForgetUpdate(update(5))]
        assert talk.session.forgotten(1) == [do.FetchUpdates(1000)]
        (frame,) = talk.session.fetched_updates([update(7)])
        assert frame == do.DeliverUpdates([update(7)])
