"""What the endpoint reports as it happens. This one listens and keeps nothing.

`reports.py` has the one that turns reports into events and numbers.
"""

from waystation.push.model import ChannelId, Notification, Replaced, Uaid, Update
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

    def received(self, uaid: Uaid, notification: Notification | Update, size: int) -> None:
        """Valid, and for somebody who exists."""

    def received_for_bridge(
        self, uaid: Uaid, notification: Notification, size: int, via: str
    ) -> None:
        """As `received`, for a user agent behind the bridge `via`."""

    def renamed(self, uaid: Uaid, before: Notification, notification: Notification) -> None:
        """Its sort key was taken: it has another id, and the sender will hear of that one only."""

    def relayed(self, notification: Notification | Update, node_id: str) -> None:
        """About to be offered to a connection node that is not in this worker."""

    def taken(self, uaid: Uaid, notification: Notification) -> None:
        """Direct: a connection node has it."""

    def stored(self, uaid: Uaid, notification: Notification | Update) -> None: ...

    def superseded(self, replaced: Replaced) -> None:
        """A newer one of its topic has been stored instead, or another version of its channel."""

    def withdrawn(self, notification: Notification) -> None:
        """Its sender deleted it, and it was still stored."""

    def expired(self, notification: Notification) -> None:
        """TTL 0, and nobody there."""

    def errored(self, notification: Notification | Update, errno: int) -> None: ...

    def node_busy(self, uaid: Uaid, node_id: str) -> None: ...

    def node_gone(self, uaid: Uaid, node_id: str) -> None:
        """The node answered that the user agent is not there."""

    def node_unreachable(self, uaid: Uaid, node_id: str) -> None: ...

    def user_agent_dropped(self, uaid: Uaid) -> None:
        """Its record was of no known kind."""

    def bridged(
        self, notification: Notification, via: str, app_id: str, code: int, took_s: float
    ) -> None:
        """The vendor has taken it."""

    def bridge_failed(
        self, notification: Notification, via: str, app_id: str, error: Exception, took_s: float
    ) -> None: ...

    def bridge_token_gone(self, uaid: Uaid, via: str) -> None:
        """The vendor does not know the device."""

    def registered(self, uaid: Uaid, via: str) -> None:
        """A new user agent behind a bridge, with its first channel."""

    def registration_updated(self, uaid: Uaid, via: str) -> None:
        """The device has another token."""

    def registration_checked(self, uaid: Uaid, via: str) -> None:
        """The device asked for its channels, and its record was renewed."""

    def unregistered(self, uaid: Uaid, via: str) -> None: ...

    def channel_added(self, uaid: Uaid, via: str) -> None: ...

    def channel_removed(self, uaid: Uaid, via: str) -> None: ...
