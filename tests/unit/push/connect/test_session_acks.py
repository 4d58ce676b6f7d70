from typing import Any

import orjson
import pytest

from tests.unit.push.connect.talk import (
    CHANNEL,
    OTHER_CHANNEL,
    Talk,
    ack,
    notification,
    of,
    settled_in,
    update,
)
from waystation.base.ids import dashed
from waystation.push.connect import effects as do
from waystation.push.connect.states import State


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

        assert talk.session.closed() == [do.HandBack([notification(2, channel_id=OTHER_CHANNEL)])]
        assert talk.session.handed_back == 1

    def test_a_notification_with_ttl_zero_is_never_handed_back(self) -> None:
        """C-039"""
        talk = settled_in()
        fleeting = notification(1, ttl_s=0)

        assert talk.session.direct(fleeting) == [do.Deliver(fleeting)]
        assert talk.session.closed() == []

    def test_each_channel_gets_its_own(self) -> None:
        """C-042"""
        talk = settled_in()
        both = [notification(1), notification(2, channel_id=OTHER_CHANNEL)]
        delivered = [of(do.Deliver, talk.session.direct(one) or [])[0] for one in both]

        assert [effect.notification.channel_id for effect in delivered] == [CHANNEL, OTHER_CHANNEL]

    def test_a_topic_is_delivered_like_any_other(self) -> None:
        """C-036"""
        talk = settled_in()
        topical = notification(1, topic="news")

        assert talk.session.direct(topical) == [do.Deliver(topical)]

    @pytest.mark.parametrize(
        "updates", [None, [], {}, "all", 7, [7], [{}], [{"version": None}], [{"code": 100}]]
    )
    def test_an_ack_that_cannot_be_read_is_an_ack_of_nothing(self, updates: Any) -> None:
        """C-031"""
        talk = settled_in()
        talk.session.direct(notification(1))

        assert talk.say({"messageType": "ack", "updates": updates}) == []
        assert talk.session.state is State.IDENTIFIED
        assert talk.session.closed() == [do.HandBack([notification(1)])]

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
        assert talk.session.direct(notification(2)) is None
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
        assert talk.session.closed() == [do.HandBack([notification(1)])]

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

        assert talk.session.direct(update(5, data="hi")) == [do.Deliver(update(5, data="hi"))]
        assert talk.say(ack(update(5))) == [do.Settle(update(5, data="hi"), 100)]

    def test_unacked_versions_are_handed_back(self) -> None:
        talk = self.greeted()
        talk.session.direct(update(5))

        assert talk.session.closed() == [do.HandBack([update(5)])]

    def test_the_other_protocols_notifications_are_refused(self) -> None:
        """C-152"""
        assert self.greeted().session.direct(notification(1)) is None
        assert settled_in().session.direct(update(1)) is None

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
        assert frame == do.Send(
            b'{"messageType":"notification","updates":[{"channelID":"%b","version":7}]}'
            % dashed(CHANNEL).encode()
        )


class TestTheShortWay:
    """The way that nearly every ack takes leads where the long way does."""

    @pytest.mark.parametrize(
        "said",
        [
            ack(notification(1)),
            ack(notification(1), notification(2)),
            ack(notification(1)) | {"more": 1},
            ack(notification(7)),
            ack(),
            {"messageType": "ack", "updates": [{"version": notification(2).message_id}]},
            {"messageType": "ack", "updates": [{"version": notification(2).message_id, "code": 0}]},
            {"messageType": "ack", "updates": [{"version": 1, "code": -1}]},
            {"messageType": "ack", "updates": [{"channelID": 5, "version": "1"}]},
            {"messageType": "ack"},
            {"messageType": "acks", "updates": []},
            {"updates": [], "messageType": "ack"},
            {"messageType": "nack", "version": "1"},
            {"messageType": "ping"},
            {},
            b'{"messageType":"ack","updates":[{"version":"1"}',
            b'{"messageType":"ack","updates":[]} ',
        ],
    )
    @pytest.mark.parametrize("refused", [False, True])
    def test_it_says_what_the_long_way_says(self, said: Any, refused: bool) -> None:
        talk, other = settled_in(), settled_in()
        for one in (talk, other):
            one.session.direct(notification(1))
            one.session.direct(notification(2))
            if refused:
                one.session.congested()
        text = said if isinstance(said, bytes) else orjson.dumps(said)
        effects = talk.session.acked(text)
        expected = other.say(text)

        assert effects is None or effects == expected
        if effects is not None:
            assert talk.session.closed() == other.session.closed()
            assert talk.session.direct_acked == other.session.direct_acked

    def test_an_ack_as_user_agents_write_it_takes_it(self) -> None:
        talk = settled_in()
        talk.session.direct(notification(1))

        assert talk.session.acked(orjson.dumps(ack(notification(1)))) == [
            do.Settle(notification(1), 100)
        ]

    def test_nothing_takes_it_before_the_greeting_or_while_a_command_is_under_way(self) -> None:
        talk = Talk()
        assert talk.session.acked(orjson.dumps(ack())) is None

        talk = settled_in()
        talk.say({"messageType": "register", "channelID": dashed(CHANNEL)})
        assert talk.session.busy
        assert talk.session.acked(orjson.dumps(ack())) is None

    def test_nothing_takes_it_after_the_end(self) -> None:
        talk = settled_in()
        talk.session.closed()

        assert talk.session.acked(orjson.dumps(ack(notification(1)))) is None
