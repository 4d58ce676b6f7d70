"""Broadcasts: their current versions, and which changes each user agent has been sent.

Rule 1: every new or changed id moves to the end of a change list and increments a
        counter; a subscription remembers the counter it has seen.
Rule 2: ids are never removed; an empty source changes nothing.
Rule 3: an unknown id is an error for that id alone, and it is not subscribed.
Rule 4: the frame of a change is built once for all user agents with the same ids and the same
        counter; each further user agent costs a dictionary look-up.
"""

from collections.abc import Mapping

import msgspec

from waystation.net.websocket.frames import text_frame
from waystation.push.wire.client_messages import broadcast_message

NOT_FOUND = "Broadcast not found"
SHARED_MAX = 1024  # tuples of ids that are shared; further ones are not
FRAMES_MAX = 1024  # frames cached until the next change; further ones are built each time

Delta = dict[str, "str | dict[str, str]"]


class Subscriptions(msgspec.Struct, frozen=True, gc=False):
    """The broadcast ids of one user agent, and the last change that it was sent."""

    ids: tuple[str, ...] = ()
    seen: int = 0


NONE = Subscriptions()


class Broadcasts:
    """Current versions, in the order in which they changed."""

    def __init__(self) -> None:
        self._versions: dict[str, str] = {}  # in the order of their last change
        self._changed: dict[str, int] = {}  # id -> counter at its last change
        self._counter = 0
        # Most user agents subscribe to the same one or two ids and share one tuple.
        self._tuples: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._frames: dict[Subscriptions, tuple[Subscriptions, bytes | None]] = {}

    @property
    def versions(self) -> Mapping[str, str]:
        return self._versions

    def update(self, versions: Mapping[str, str]) -> int:
        """Apply the versions of the source. How many changed."""
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
            self._frames.clear()
        return changes

    def subscribe(
        self, subscriptions: Subscriptions, wanted: Mapping[str, str]
    ) -> tuple[Subscriptions, Delta]:
        """Subscribe to the known ids of `wanted`. The delta has changes of earlier subscriptions,
        versions that differ from `wanted`, and errors for unknown ids."""
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
                delta.pop(broadcast_id, None)  # the user agent already has this version
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
        """Changes since the last delta that the user agent was sent."""
        delta: Delta = {}
        if subscriptions.seen == self._counter or not subscriptions.ids:
            return subscriptions, delta
        for broadcast_id in subscriptions.ids:
            if self._changed[broadcast_id] > subscriptions.seen:
                delta[broadcast_id] = self._versions[broadcast_id]
        return Subscriptions(subscriptions.ids, self._counter), delta

    def frame(self, subscriptions: Subscriptions) -> tuple[Subscriptions, bytes | None]:
        """`delta` as a WebSocket frame; None if nothing has changed."""
        if subscriptions.seen == self._counter or not subscriptions.ids:
            return subscriptions, None
        frame = self._frames.get(subscriptions)
        if frame is None:
            told, delta = self.delta(subscriptions)
            frame = told, text_frame(broadcast_message(delta)) if delta else None
            if len(self._frames) < FRAMES_MAX:
                self._frames[subscriptions] = frame
        return frame
