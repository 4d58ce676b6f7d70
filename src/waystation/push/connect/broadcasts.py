"""Broadcasts: versions that all user agents learn of, and who has heard what.

Rule 1: every new or changed id moves to the end of a change list and bumps a
        counter; a subscription remembers the counter it has seen.
Rule 2: ids are never forgotten, and an empty source removes nothing.
Rule 3: an unknown id is an error for that id alone, and it is not subscribed.
Rule 4: what a change has to say is made once, frame and all, for everybody who follows the same
        ids and has heard the same; another user agent costs a look-up.
"""

from collections.abc import Mapping

import msgspec

from waystation.net.websocket.frames import text_frame
from waystation.push.wire.client_messages import broadcast_message

NOT_FOUND = "Broadcast not found"
SHARED_MAX = 1024  # sets of ids that are shared; further ones are each user agent's own
NEWS_MAX = 1024  # frames that are kept until the next change; further ones are made each time

Delta = dict[str, "str | dict[str, str]"]


class Subscriptions(msgspec.Struct, frozen=True, gc=False):
    """What one user agent follows, and how far it has been told."""

    ids: tuple[str, ...] = ()
    seen: int = 0


NONE = Subscriptions()


class Broadcasts:
    """The versions in force, with the order in which they changed."""

    def __init__(self) -> None:
        self._versions: dict[str, str] = {}  # in the order of their last change
        self._changed: dict[str, int] = {}  # id -> counter at its last change
        self._counter = 0
        # Most user agents follow the same one or two ids: they share one tuple.
        self._tuples: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._news: dict[Subscriptions, tuple[Subscriptions, bytes | None]] = {}  # since a change

    @property
    def versions(self) -> Mapping[str, str]:
        return self._versions

    def update(self, versions: Mapping[str, str]) -> int:
        """Take over what the source says now. How many changed."""
        changes = 0
        for broadcast_id, version in versions.items():
            if self._versions.get(broadcast_id) == version:
                continue
            self._counter += 1
            changes += 1
            self._versions.pop(broadcast_id, None)
            self._versions[broadcast_id] = version
            self._changed[broadcast_id] = self._counter
        if changes:
            self._news.clear()
        return changes

    def subscribe(
        self, subscriptions: Subscriptions, wanted: Mapping[str, str]
    ) -> tuple[Subscriptions, Delta]:
        """Follow what is known of `wanted`. The answer has what changed for earlier
        subscriptions, what differs from `wanted`, and the errors."""
        subscriptions, delta = self.delta(subscriptions)
        errors: dict[str, str] = {}
        ids = dict.fromkeys(subscriptions.ids)
        for broadcast_id, version in wanted.items():
            current = self._versions.get(broadcast_id)
            if current is None:
                errors[broadcast_id] = NOT_FOUND
                continue
            ids[broadcast_id] = None
            if current != version:
                delta[broadcast_id] = current
            else:
                delta.pop(broadcast_id, None)  # it has just told us that it knows
        if errors:
            delta["errors"] = errors
        if not ids:
            return NONE, delta
        return Subscriptions(self._shared(tuple(ids)), self._counter), delta

    def _shared(self, ids: tuple[str, ...]) -> tuple[str, ...]:
        if len(self._tuples) >= SHARED_MAX:
            return self._tuples.get(ids, ids)
        return self._tuples.setdefault(ids, ids)

    def delta(self, subscriptions: Subscriptions) -> tuple[Subscriptions, Delta]:
        """What has changed since the user agent was last told."""
        delta: Delta = {}
        if subscriptions.seen == self._counter or not subscriptions.ids:
            return subscriptions, delta
        for broadcast_id in subscriptions.ids:
            if self._changed[broadcast_id] > subscriptions.seen:
                delta[broadcast_id] = self._versions[broadcast_id]
        return Subscriptions(subscriptions.ids, self._counter), delta

    def news(self, subscriptions: Subscriptions) -> tuple[Subscriptions, bytes | None]:
        """`delta` as the frame that tells it; None if there is nothing to tell."""
        if subscriptions.seen == self._counter or not subscriptions.ids:
            return subscriptions, None
        news = self._news.get(subscriptions)
        if news is None:
            told, delta = self.delta(subscriptions)
            news = told, text_frame(broadcast_message(delta)) if delta else None
            if len(self._news) < NEWS_MAX:
                self._news[subscriptions] = news
        return news
