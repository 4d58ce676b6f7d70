"""What the endpoint reports as it happens. This one listens and keeps nothing.

`reports.py` has the one that turns reports into events and numbers.
"""

from waystation.push.model import ChannelId, Notification, Replaced, Uaid
from waystation.push.vapid import Sender


class Observer:
    """Past tense: everything here has been done."""

    def answered(  # noqa: PLR0917 - for every POST, and names cost as much as the call
        self,
        status: int,
        error: BaseException | None,
        began: float,
        size: int,
        ttl_s: int = 0,
        sender: Sender | None = None,
        channel_id: ChannelId | None = None,
    ) -> None:
        """A POST has its answer; `began` is monotonic."""

    def received(self, uaid: Uaid, notification: Notification, size: int) -> None:
        """Valid, and for somebody who exists."""

    def renamed(self, uaid: Uaid, before: Notification, notification: Notification) -> None:
        """Its sort key was taken: it has another id, and the sender will hear of that one only."""

    def relayed(self, notification: Notification, node_id: str) -> None:
        """About to be offered to a connection node that is not in this worker."""

    def taken(self, uaid: Uaid, notification: Notification) -> None:
        """Direct: a connection node has it."""

    def stored(self, uaid: Uaid, notification: Notification) -> None: ...

    def superseded(self, replaced: Replaced) -> None:
        """A newer one of its topic has been stored instead."""

    def expired(self, notification: Notification) -> None:
        """TTL 0, and nobody there."""

    def errored(self, notification: Notification, errno: int) -> None: ...

    def node_busy(self, uaid: Uaid, node_id: str) -> None: ...

    def node_gone(self, uaid: Uaid, node_id: str) -> None:
        """The node answered that the user agent is not there."""

    def node_unreachable(self, uaid: Uaid, node_id: str) -> None: ...

    def user_agent_dropped(self, uaid: Uaid) -> None:
        """Its record was of no known kind."""
