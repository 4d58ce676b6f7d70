"""Compares what a simulated push service promised with what happened.

The world reports every relevant step to `History`. Each checker is a function from a history to
sentences about broken promises; an empty list means success.

Checkers excuse only what the history proves:
- a notification may come again after its ack was recorded if an answer was lost on the way: a
  relay's answer, a store's confirmation, or the record of the ack in a node that was killed before
  it was written;
- a notification may wait for the user agent's next connection if the node that stored it could not
  notify the connect node: the world makes such user agents reconnect before it checks. The same
  holds for one that a call of a dead process stores after its journal was handed back.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from waystation.push.model import ChannelId, MessageId, Notification, SortKey, Uaid
from waystation.testing.loop import SimClock

Outcome = Literal["pending", "accepted", "refused", "gone", "unknown"]
NEVER = float("inf")


class Post:
    """One POST of an app server, and what is known of its notification."""

    __slots__ = (
        "began_s",
        "channel_id",
        "ended_s",
        "notification",
        "number",
        "outcome",
        "topic",
        "ttl_s",
        "uaid",
        "withdrawn",
    )

    def __init__(
        self, number: int, uaid: Uaid, channel_id: ChannelId, topic: str | None, ttl_s: int
    ) -> None:
        self.number = number
        self.uaid = uaid
        self.channel_id = channel_id
        self.topic = topic
        self.ttl_s = ttl_s
        self.began_s = 0.0
        self.ended_s = NEVER  # unless it was answered, its effect may still come
        self.outcome: Outcome = "pending"
        self.notification: Notification | None = None
        self.withdrawn = False


class Batch:
    """Stored notifications that one read gave one connection."""

    __slots__ = ("node", "read_at_s", "rows", "uaid")

    def __init__(
        self, node: str, uaid: Uaid, read_at_s: float, rows: Sequence[Notification]
    ) -> None:
        self.node = node
        self.uaid = uaid
        self.read_at_s = read_at_s
        self.rows = rows


class History:
    """Everything that happened, in order."""

    def __init__(self, clock: SimClock) -> None:
        self._clock = clock
        self.names: dict[bytes, str] = {}  # of user agents and channels
        self.posts: list[Post] = []
        self.by_message: dict[MessageId, Post] = {}
        self.acked: set[MessageId] = set()  # by user agents; recorded or not
        self.recorded: dict[MessageId, float] = {}  # acks that must not be forgotten
        self.sent_direct: dict[MessageId, int] = {}  # when last sent; its place in the order
        self.misled: set[MessageId] = set()
        # By a call of a process that died: it may arrive after all was handed back and told.
        self.saved_late: set[MessageId] = set()
        self.trouble_at: dict[Uaid, float] = {}
        self.channel_gone_at: dict[tuple[Uaid, ChannelId], float] = {}
        self.agent_gone_at: dict[Uaid, float] = {}
        self.batches: list[Batch] = []
        self.saved_at: dict[MessageId, float] = {}
        self.renamed = 0
        self.problems: list[str] = []  # seen at once, where they happened
        self.left: list[tuple[str, Uaid, MessageId]] = []  # when all should be done
        self._directs = 0
        self._read_at: dict[tuple[str, Uaid], float] = {}
        self._lines: list[tuple[float, str, str, bytes | None, MessageId | None]] = []

    def note(
        self,
        actor: str,
        what: str,
        uaid: bytes | None = None,
        message_id: MessageId | None = None,
    ) -> None:
        self._lines.append((self._clock.elapsed_s, actor, what, uaid, message_id))

    def problem(self, sentence: str) -> None:
        self.note("CHECK", sentence)
        self.problems.append(sentence)

    # App servers

    def began(self, post: Post, source: str) -> None:
        post.began_s = self._clock.elapsed_s
        self.posts.append(post)
        topic = f" topic {post.topic}" if post.topic else ""
        self.note(source, f"#{post.number} posted, ttl {post.ttl_s}{topic}", post.uaid)

    def received_post(self, post: Post, notification: Notification) -> None:
        post.notification = notification
        self.by_message[notification.message_id] = post

    def renamed_post(self, post: Post, notification: Notification) -> None:
        """Its key was taken. What was sent under the first id all the same is this post's too."""
        self.note("store", f"#{post.number} has another id", post.uaid, notification.message_id)
        self.renamed += 1
        self.received_post(post, notification)

    def ended(self, post: Post, source: str, outcome: Outcome) -> None:
        post.outcome = outcome
        if outcome != "unknown":
            post.ended_s = self._clock.elapsed_s
        message_id = post.notification.message_id if post.notification is not None else None
        self.note(source, f"#{post.number} {outcome}", post.uaid, message_id)

    def withdrawn(self, post: Post) -> None:
        post.withdrawn = True
        self.note("sender", f"#{post.number} withdrawn", post.uaid)

    # Nodes

    def taken(self, node: str, uaid: Uaid, message_id: MessageId) -> None:
        self.note(node, "sends it directly", uaid, message_id)
        self.sent_direct[message_id] = self._directs = self._directs + 1
        self._sent(node, message_id, self._clock.elapsed_s)

    def retrieved(self, node: str, uaid: Uaid, rows: Sequence[Notification]) -> None:
        read_at_s = self._read_at.get((node, uaid), 0.0)
        self.batches.append(Batch(node, uaid, read_at_s, rows))
        for row in rows:
            self.note(node, f"sends it from storage, read at {read_at_s:.3f}", uaid, row.message_id)
            self.sent_direct.pop(row.message_id, None)
            self._sent(node, row.message_id, read_at_s)

    def _sent(self, node: str, message_id: MessageId, decided_at_s: float) -> None:
        recorded_at_s = self.recorded.get(message_id, NEVER)
        if decided_at_s > recorded_at_s and message_id not in self.misled:
            self.problem(
                f"{self.name_of(message_id)} was sent again by {node} at {decided_at_s:.3f}"
                f" although its ack was recorded at {recorded_at_s:.3f}"
            )

    def direct_acked(self, node: str, uaid: Uaid, message_id: MessageId) -> None:
        self.note(node, "ack of the direct one recorded", uaid, message_id)
        self.recorded.setdefault(message_id, self._clock.elapsed_s)

    def record_lost(self, message_id: MessageId) -> None:
        """The node was killed, or its disk failed, before the journal had it."""
        self.misled.add(message_id)

    def misheard(self, uaid: Uaid, message_id: MessageId | None) -> None:
        self.note("relay", "an answer was not heard", uaid, message_id)
        self.trouble_at[uaid] = self._clock.elapsed_s
        if message_id is not None:
            self.misled.add(message_id)

    # The store

    def saved(
        self, source: str, uaid: Uaid, notifications: Sequence[Notification], *, ghost: bool
    ) -> None:
        for notification in notifications:
            how = "saved, by one who is dead" if ghost else "saved"
            self.note(source, how, uaid, notification.message_id)
            self.saved_at[notification.message_id] = self._clock.elapsed_s
            if ghost:  # its journal owes it still, and will hand it back once more
                self.misled.add(notification.message_id)
                self.saved_late.add(notification.message_id)
            else:
                self.saved_late.discard(notification.message_id)

    def fetched(self, source: str, uaid: Uaid, rows: Sequence[Notification]) -> None:
        self.note(source, f"read {len(rows)} rows", uaid)
        self._read_at[source, uaid] = self._clock.elapsed_s

    def forgotten(self, source: str, uaid: Uaid, rows: Sequence[tuple[SortKey, MessageId]]) -> None:
        for _, message_id in rows:
            self.note(source, "row deleted", uaid, message_id)
            if not source.startswith("e"):  # a withdrawal is no ack
                self.recorded.setdefault(message_id, self._clock.elapsed_s)

    def channel_removed(self, uaid: Uaid, channel_id: ChannelId) -> None:
        self.note("store", f"channel {self.names.get(channel_id)} removed", uaid)
        self.channel_gone_at.setdefault((uaid, channel_id), self._clock.elapsed_s)

    def user_agent_removed(self, uaid: Uaid) -> None:
        self.note("store", "user agent removed", uaid)
        self.agent_gone_at.setdefault(uaid, self._clock.elapsed_s)

    def failed(self, source: str, call: str, uaid: Uaid, *, applied: bool) -> None:
        after = " after its effect" if applied else ""
        self.note(source, f"{call} failed{after}", uaid)
        if source.startswith("e") or (applied and call == "claim_route"):
            # Nobody was told; or the route leads to a connection that was given up, away from
            # an older one that the user agent still has.
            self.trouble_at[uaid] = self._clock.elapsed_s
        elif applied and call in ("save_if_newer", "save_new"):
            # Handing back is tried again, and may come after the ack of the first try's row.
            self.misled.update(
                message_id for message_id, post in self.by_message.items() if post.uaid == uaid
            )

    # User agents

    def heard_by(self, name: str, uaid: Uaid, message_id: MessageId) -> None:
        self.note(name, "has it", uaid, message_id)

    def acked_by(self, name: str, uaid: Uaid, message_id: MessageId) -> None:
        self.note(name, "acks it", uaid, message_id)
        self.acked.add(message_id)

    def heard_for_gone_channel(self, name: str, message_id: MessageId) -> None:
        """After the user agent was told that the channel is gone. A direct notification whose
        POST found the channel still there may be on its way; storage must know better."""
        if message_id not in self.sent_direct:
            self.problem(f"{name} got {self.name_of(message_id)} for a channel that it had left")

    # For people

    def name_of(self, message_id: MessageId) -> str:
        post = self.by_message.get(message_id)
        return f"#{post.number}" if post is not None else "(unknown)"

    def lines(self, about: Iterable[Uaid] | None = None) -> list[str]:
        """Readable, and only what concerns certain user agents if they are named."""
        wanted = None if about is None else set(about)
        return [
            f"{at_s:9.3f}  {actor:<6} {self.names.get(uaid or b'', ''):<5}"
            f" {self.name_of(message_id) if message_id is not None else '':<5} {what}"
            for at_s, actor, what, uaid, message_id in self._lines
            if wanted is None or uaid is None or uaid in wanted
        ]


Checker = Callable[[History, int], list[str]]


def nothing_lost(history: History, now_ms: int) -> list[str]:
    """Accepted is received, or over, or replaced, or withdrawn, or its channel is gone.

    Received means acked by the user agent: what it had on a connection that ended before its ack
    must come again."""
    by_topic: dict[tuple[Uaid, ChannelId, str], list[Post]] = defaultdict(list)
    for post in history.posts:
        if post.topic is not None and post.notification is not None:
            by_topic[post.uaid, post.channel_id, post.topic].append(post)
    lost: list[str] = []
    for post in history.posts:
        notification = post.notification
        if post.outcome != "accepted" or post.ttl_s == 0 or post.withdrawn:
            continue
        assert notification is not None
        if notification.message_id in history.acked or notification.expired(now_ms):
            continue
        if post.uaid in history.agent_gone_at:
            continue
        if (post.uaid, post.channel_id) in history.channel_gone_at:
            continue
        if post.topic is not None and any(
            _may_replace(other, post)
            for other in by_topic[post.uaid, post.channel_id, post.topic]
            if other is not post
        ):
            continue
        lost.append(f"#{post.number} was accepted at {post.ended_s:.3f} and never received")
    return lost


def _may_replace(newer: Post, older: Post) -> bool:
    """Two POSTs of a topic that overlap have no order; neither have two clocks that differ."""
    assert newer.notification is not None
    assert older.notification is not None
    return (
        newer.ended_s >= older.began_s
        or newer.notification.accepted_at_ms > older.notification.accepted_at_ms
    )


def nothing_left(history: History, now_ms: int) -> list[str]:
    """When everybody is connected and acks, nothing waits anywhere any more."""
    return [
        f"{history.name_of(message_id)} is still in {where}"
        for where, _, message_id in history.left
        if message_id not in history.saved_late
        and (
            (post := history.by_message.get(message_id)) is None
            or (post.outcome == "accepted" and post.uaid not in history.agent_gone_at)
        )
    ]


def rows_in_order(history: History, now_ms: int) -> list[str]:
    """The rows of one read come by sort key; topics first, because their keys are lower."""
    return [
        f"{batch.node} sent rows out of order: "
        + ", ".join(history.name_of(row.message_id) for row in batch.rows)
        for batch in history.batches
        if list(batch.rows) != sorted(batch.rows, key=lambda row: row.sort_key)
    ]


def seen_at_once(history: History, now_ms: int) -> list[str]:
    """What was wrong at the moment it happened: repeats, order, limits, gone channels."""
    return list(history.problems)


CHECKERS: tuple[Checker, ...] = (seen_at_once, nothing_lost, nothing_left, rows_in_order)


def broken_promises(history: History, now_ms: int) -> list[str]:
    return [sentence for check in CHECKERS for sentence in check(history, now_ms)]
