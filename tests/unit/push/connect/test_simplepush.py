from tests.unit.push.connect.talk import CHANNEL, OTHER_CHANNEL, notification, update
from waystation.base.ids import dashed
from waystation.push.connect import effects as do
from waystation.push.connect.effects import Effect
from waystation.push.connect.simplepush import UpdateWindow
from waystation.push.model import ChannelId, Update
from waystation.push.wire.client_messages import AckUpdate


def ack(window: UpdateWindow, version: int, channel_id: ChannelId = CHANNEL) -> list[Effect]:
    return window.acked([AckUpdate(version=version, channelID=dashed(channel_id))])


def reading() -> UpdateWindow:
    window = UpdateWindow()
    assert window.check()
    assert window.look(1000) == [do.FetchUpdates(1000)]
    return window


def versions(effects: list[Effect]) -> list[int]:
    assert len(effects) == 1
    sent = effects[0]
    assert isinstance(sent, do.DeliverUpdates)
    return [one.version for one in sent.updates]


def test_a_version_is_delivered_with_its_data() -> None:
    """C-147, C-151"""
    window = UpdateWindow()

    assert window.direct(update(5, data="hi")) is do.Direct.SENT
    assert window.unacked_directs == [update(5, data="hi")]


def test_anything_unacked_refuses_a_newer_version() -> None:
    window = UpdateWindow()
    window.direct(update(5))

    assert window.direct(update(6)) is do.Direct.REFUSED
    assert window.direct(update(1, OTHER_CHANNEL)) is do.Direct.REFUSED
    ack(window, 5)
    assert window.look(1000) == [do.FetchUpdates(1000)]


def test_a_version_that_is_not_newer_than_an_unacked_one_is_passed_over() -> None:
    window = UpdateWindow()
    window.direct(update(5))

    assert window.direct(update(5)) is do.Direct.OUTSTANDING
    assert window.direct(update(4)) is do.Direct.OUTSTANDING


def test_an_ack_settles_every_version_up_to_it() -> None:
    window = UpdateWindow()
    window.direct(update(5))

    assert ack(window, 4) == []
    assert ack(window, 7) == [do.Settle(update(5), 100)]
    assert window.unacked == 0
    assert window.direct_acked == 1


def test_acks_without_a_channel_or_with_text_for_a_version_are_harmless() -> None:
    window = UpdateWindow()
    window.direct(update(5))

    assert window.acked([AckUpdate(version=5)]) == []
    assert window.acked([AckUpdate(version=5, channelID="no uuid")]) == []
    assert window.acked([AckUpdate(version="5", channelID=dashed(CHANNEL))]) == []
    assert ack(window, 5, OTHER_CHANNEL) == []
    assert window.unacked == 1


def test_all_stored_versions_are_sent_in_one_message() -> None:
    """C-148"""
    window = reading()

    assert versions(window.read([update(7), update(2, OTHER_CHANNEL)])) == [7, 2]
    assert window.unacked == 2
    assert window.stored_sent == 2


def test_an_acked_row_is_deleted_only_as_the_version_that_was_read() -> None:
    """C-149: a newer row survives, and the next look finds it."""
    window = reading()
    window.read([update(5)])
    window.check()  # 7 was stored meanwhile

    assert ack(window, 5) == [do.ForgetUpdate(update(5))]
    assert window.look(1000) == []
    window.forgotten(1)
    assert window.look(1000) == [do.FetchUpdates(1000)]
    assert versions(window.read([update(7)])) == [7]


def test_a_version_sent_while_storage_was_read_covers_an_older_row() -> None:
    window = reading()
    window.direct(update(7))

    assert window.read([update(6)]) == []
    assert ack(window, 7) == [do.Settle(update(7), 100), do.ForgetUpdate(update(6))]


def test_a_newer_row_is_sent_beside_a_version_sent_while_it_was_read() -> None:
    window = reading()
    window.direct(update(6))

    assert versions(window.read([update(7)])) == [7]
    assert ack(window, 7) == [do.Settle(update(6), 100), do.ForgetUpdate(update(7))]


def test_told_while_busy_it_looks_when_nothing_is_unacked() -> None:
    window = UpdateWindow()
    window.direct(update(5))

    assert not window.check()
    assert window.look(1000) == []
    ack(window, 5)
    assert window.look(1000) == [do.FetchUpdates(1000)]


def test_told_while_reading_it_reads_once_more() -> None:
    window = reading()

    assert not window.check()
    assert window.read([]) == []
    assert window.look(1000) == [do.FetchUpdates(1000)]


def test_nothing_of_an_ended_channel_is_owed_or_sent() -> None:
    window = reading()
    window.direct(update(5))

    assert window.drop_channel(CHANNEL) == [do.Settle(update(5), do.DROPPED)]
    assert versions(window.read([update(6), update(1, OTHER_CHANNEL)])) == [1]
    assert window.drop_channel(OTHER_CHANNEL) == []
    assert window.unacked == 0


def test_a_web_push_notification_is_refused() -> None:
    assert UpdateWindow().direct(notification(1)) is do.Direct.REFUSED


def test_what_is_unacked_is_handed_back_with_its_version() -> None:
    window = reading()
    window.direct(update(5))
    window.read([update(1, OTHER_CHANNEL)])

    assert window.unacked_directs == [Update(CHANNEL, 5)]
