import pytest

from tests.sim.push.checkers import History, Post, broken_promises
from waystation.push.model import ChannelId, MessageId, Notification, SortKey, Uaid
from waystation.testing.loop import SimClock

UAID = Uaid(b"\x11" * 16)
CHANNEL = ChannelId(b"\x22" * 16)


class Story:
    """A history that is told by hand."""

    def __init__(self) -> None:
        self.clock = SimClock()
        self.history = History(self.clock)

    def accept(self, number: int, *, topic: str | None = None, ttl_s: int = 3600) -> Notification:
        post = Post(number, UAID, CHANNEL, topic, ttl_s)
        key = f"01:x:{topic}" if topic else f"02:{number:06d}"
        notification = Notification(
            CHANNEL, MessageId(f"m{number}"), SortKey(key), self.clock.now_ms(), ttl_s, topic
        )
        self.history.began(post, "e0")
        self.history.received_post(post, notification)
        self.pass_s(0.1)
        self.history.ended(post, "e0", "accepted")
        return notification

    def pass_s(self, seconds: float) -> None:
        self.clock.elapsed_s += seconds

    def broken(self) -> list[str]:
        return broken_promises(self.history, self.clock.now_ms())


@pytest.fixture
def story() -> Story:
    return Story()


def test_an_accepted_one_that_never_came_is_lost(story: Story) -> None:
    story.accept(1)

    assert story.broken() == ["#1 was accepted at 0.100 and never received"]


def test_what_was_acked_is_not_lost(story: Story) -> None:
    notification = story.accept(1)
    story.history.acked_by("ua0", UAID, notification.message_id)

    assert not story.broken()


def test_what_was_only_heard_is_lost(story: Story) -> None:
    notification = story.accept(1)
    story.history.heard_by("ua0", UAID, notification.message_id)

    assert story.broken()


def test_what_is_over_or_was_never_to_be_kept_is_not_lost(story: Story) -> None:
    story.accept(1, ttl_s=5)
    story.accept(2, ttl_s=0)
    story.pass_s(10)

    assert not story.broken()


def test_a_withdrawn_one_is_not_lost(story: Story) -> None:
    story.accept(1)
    story.history.withdrawn(story.history.posts[0])

    assert not story.broken()


def test_what_was_for_a_channel_or_user_agent_that_is_gone_is_not_lost(story: Story) -> None:
    story.accept(1)
    story.history.channel_removed(UAID, CHANNEL)
    assert not story.broken()

    story.history.channel_gone_at.clear()
    story.history.user_agent_removed(UAID)
    assert not story.broken()


def test_a_topic_is_replaced_by_a_later_one_and_not_by_an_earlier_one(story: Story) -> None:
    first = story.accept(1, topic="a")
    story.pass_s(1)
    second = story.accept(2, topic="a")

    story.history.acked_by("ua0", UAID, second.message_id)
    assert not story.broken()
    story.history.acked.clear()
    story.history.acked_by("ua0", UAID, first.message_id)
    assert story.broken() == ["#2 was accepted at 1.200 and never received"]


def test_a_recorded_ack_is_never_followed_by_another_delivery(story: Story) -> None:
    notification = story.accept(1)
    story.history.taken("c0", UAID, notification.message_id)
    story.history.acked_by("ua0", UAID, notification.message_id)
    story.history.direct_acked("c0", UAID, notification.message_id)
    story.pass_s(1)
    story.history.fetched("c1", UAID, [notification])
    story.history.retrieved("c1", UAID, [notification])

    assert "#1 was sent again by c1" in story.broken()[0]


def test_a_read_from_before_the_ack_may_still_be_sent(story: Story) -> None:
    notification = story.accept(1)
    story.history.fetched("c1", UAID, [notification])
    story.pass_s(1)
    story.history.acked_by("ua0", UAID, notification.message_id)
    story.history.forgotten("c0", UAID, [(notification.sort_key, notification.message_id)])
    story.history.retrieved("c1", UAID, [notification])

    assert not story.broken()


def test_whoever_was_misled_may_send_again(story: Story) -> None:
    notification = story.accept(1)
    story.history.misheard(UAID, notification.message_id)
    story.history.direct_acked("c0", UAID, notification.message_id)
    story.history.acked_by("ua0", UAID, notification.message_id)
    story.pass_s(1)
    story.history.fetched("c1", UAID, [notification])
    story.history.retrieved("c1", UAID, [notification])

    assert not story.broken()


def test_rows_of_one_read_come_by_sort_key(story: Story) -> None:
    rows = [story.accept(1), story.accept(2), story.accept(3, topic="a")]
    for row in rows:
        story.history.acked_by("ua0", UAID, row.message_id)
    story.history.retrieved("c0", UAID, [rows[2], rows[0], rows[1]])
    assert not story.broken()

    story.history.retrieved("c0", UAID, [rows[0], rows[2]])
    assert story.broken() == ["c0 sent rows out of order: #1, #3"]


def test_what_is_left_when_all_should_be_done_is_named(story: Story) -> None:
    notification = story.accept(1)
    story.history.acked_by("ua0", UAID, notification.message_id)
    story.history.left = [("the store", UAID, notification.message_id)]

    assert story.broken() == ["#1 is still in the store"]


def test_storage_must_know_that_a_channel_is_gone_and_a_direct_one_need_not(story: Story) -> None:
    notification = story.accept(1)
    story.history.acked_by("ua0", UAID, notification.message_id)
    story.history.taken("c0", UAID, notification.message_id)
    story.history.heard_for_gone_channel("ua0", notification.message_id)
    assert not story.broken()

    story.history.retrieved("c0", UAID, [notification])
    story.history.heard_for_gone_channel("ua0", notification.message_id)
    assert story.broken() == ["ua0 got #1 for a channel that it had left"]


def test_the_history_is_readable_and_can_be_narrowed_to_a_user_agent(story: Story) -> None:
    story.history.names[UAID] = "ua0"
    notification = story.accept(1, topic="a")
    story.history.taken("c0", UAID, notification.message_id)
    story.history.note("c1", "greeted", b"\x99" * 16)

    lines = story.history.lines({UAID})
    assert lines[0] == "    0.000  e0     ua0         #1 posted, ttl 3600 topic a"
    assert lines[-1] == "    0.100  c0     ua0   #1    sends it directly"
    assert len(story.history.lines()) == len(lines) + 1
