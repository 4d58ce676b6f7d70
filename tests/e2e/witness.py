"""Who sent what, who received it, who acked it: what a crowd saw, against what was promised.

Rule 1: whatever was answered 201 with a TTL arrives. A topic's notification may have been replaced
        by any of the same topic that was not over when it began.
Rule 2: what was acked may come again only if the ack may not have been recorded: it was sent less
        than `RECORDED_S` before a kill, or on a connection that was lost within that time.
Rule 3: nothing arrives that nobody sent, and nothing at a stranger.

Times are of one monotonic clock. The witness does no I/O: the crowd tells it.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Literal

RECORDED_S = 1.0  # design, promise 2
NEVER = float("inf")

Outcome = Literal["under way", "accepted", "refused", "unknown"]
Subscription = tuple[str, int]  # the device, and which of its subscriptions


class Post:
    """One POST of an app server."""

    __slots__ = ("began", "ended", "outcome", "subscription", "topic")

    def __init__(self, subscription: Subscription, topic: str | None, began: float) -> None:
        self.subscription = subscription
        self.topic = topic
        self.began = began
        self.ended = NEVER  # what was never answered may still take effect
        self.outcome: Outcome = "under way"


class Line:
    """One connection of a device."""

    __slots__ = ("ended", "graceful")

    def __init__(self) -> None:
        self.ended = NEVER
        self.graceful = False  # the server has answered our Close, so it has read all before


class Witness:
    def __init__(self) -> None:
        self.posts: dict[int, Post] = {}
        self.kills: list[float] = []
        self.problems: list[str] = []
        self.received: dict[int, list[float]] = defaultdict(list)
        self._acks: dict[int, list[tuple[float, Line]]] = defaultdict(list)
        self._repeats: list[tuple[int, float, list[tuple[float, Line]]]] = []

    # What the crowd tells

    def began(self, subscription: Subscription, topic: str | None, mono: float) -> int:
        number = len(self.posts)
        self.posts[number] = Post(subscription, topic, mono)
        return number

    def ended(self, number: int, outcome: Outcome, mono: float) -> None:
        post = self.posts[number]
        post.outcome = outcome
        if outcome != "unknown":
            post.ended = mono

    def got(self, number: int, subscription: Subscription, mono: float) -> None:
        post = self.posts.get(number)
        if post is None or post.subscription != subscription:
            self.problems.append(f"#{number} came to {subscription}, whose it is not")
            return
        self.received[number].append(mono)
        if number in self._acks:
            self._repeats.append((number, mono, list(self._acks[number])))

    def acked(self, number: int, line: Line, mono: float) -> None:
        self._acks[number].append((mono, line))

    def killed(self, mono: float) -> None:
        self.kills.append(mono)

    # What is made of it

    @property
    def accepted(self) -> int:
        return sum(post.outcome == "accepted" for post in self.posts.values())

    def unacked(self) -> set[int]:
        """Received at least once, and nobody has said so. What was replaced while its device was
        away never comes again, so nobody will."""
        waiting = self.received.keys() - self._acks.keys()
        return waiting - self._replaced(waiting)

    def missing(self) -> list[int]:
        """Accepted, not received and not replaced."""
        waiting = [
            number
            for number, post in self.posts.items()
            if post.outcome == "accepted" and number not in self.received
        ]
        replaced = self._replaced(waiting)
        return [number for number in waiting if number not in replaced]

    def _replaced(self, numbers: Iterable[int]) -> set[int]:
        """Those of them that another of their topic may have replaced. Two POSTs of one topic that
        overlap have no order, so either may be the newer one."""
        by_topic: dict[tuple[Subscription, str], list[Post]] = defaultdict(list)
        for post in self.posts.values():
            if post.topic is not None and post.outcome != "refused":
                by_topic[post.subscription, post.topic].append(post)
        replaced: set[int] = set()
        for number in numbers:
            post = self.posts[number]
            if post.topic is not None and any(
                other is not post and other.ended >= post.began
                for other in by_topic[post.subscription, post.topic]
            ):
                replaced.add(number)
        return replaced

    def verdict(self) -> list[str]:
        """Sentences about broken promises; none is what everybody wants."""
        lost = [
            f"#{number} for {self.posts[number].subscription}, topic {self.posts[number].topic},"
            f" was answered 201 at {self.posts[number].ended:.3f} and never came"
            for number in self.missing()
        ]
        repeated = [
            f"#{number} came at {mono:.3f} although its ack of {at:.3f} must have been recorded"
            for number, mono, acks in self._repeats
            for at, line in acks
            if self._recorded(at, line) and mono >= at + RECORDED_S
        ]
        return self.problems + lost + repeated

    def _recorded(self, at: float, line: Line) -> bool:
        if any(at - 0.05 <= kill <= at + RECORDED_S for kill in self.kills):
            return False
        return line.graceful or line.ended >= at + RECORDED_S

    def summary(self) -> str:
        again = sum(len(times) - 1 for times in self.received.values())
        after_ack = len(self._repeats)
        share = after_ack / max(1, len(self.received))
        return (
            f"{len(self.posts)} posted, {self.accepted} answered 201,"
            f" {len(self.received)} received; {again} came again,"
            f" {after_ack} of them after an ack ({share:.2%})"
        )
