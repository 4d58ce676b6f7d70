"""Port for the endpoint's reports. The default observer discards them.

`reports.Reports` implements it with events and metrics.
"""

from waystation.push.model import ChannelId, Notification, Replaced, Uaid, Update
from waystation.push.vapid import Sender


class Observer:
    """Methods are called after the fact, so their names are in the past tense."""

    def answered(  # noqa: PLR0917 - called for every POST; keyword arguments would double its cost
        self,
        status: int,
        error: BaseException | None,
        began: float,
        size: int,
        ttl_s: int = 0,
        sender: Sender | None = None,
        channel_id: ChannelId | None = None,
    ) -> None:
        """A POST was answered; `began` is monotonic."""

    def received(self, uaid: Uaid, notification: Notification | Update, size: int) -> None:
        """A notification passed all checks; its subscription exists."""

    def received_for_bridge(
        self, uaid: Uaid, notification: Notification, size: int, via: str
    ) -> None:
        """As `received`, for a user agent behind the bridge `via`."""

    def renamed(self, uaid: Uaid, before: Notification, notification: Notification) -> None:
        """The sort key was in use: the notification got another id, and the sender gets only it."""

    def relayed(self, notification: Notification | Update, node_id: str) -> None:
        """A notification is about to be sent to a connection node outside this worker."""

    def taken(self, uaid: Uaid, notification: Notification) -> None:
        """A connection node accepted a direct notification."""

    def stored(self, uaid: Uaid, notification: Notification | Update) -> None: ...

    def superseded(self, replaced: Replaced) -> None:
        """A stored notification was replaced by a newer one of its topic, or a version by another
        one of its channel."""

    def withdrawn(self, notification: Notification) -> None:
        """The sender deleted a notification that was still stored."""

    def expired(self, notification: Notification) -> None:
        """A notification with TTL 0 could not be delivered directly."""

    def errored(self, notification: Notification | Update, errno: int) -> None: ...

    def node_busy(self, uaid: Uaid, node_id: str) -> None: ...

    def node_gone(self, uaid: Uaid, node_id: str) -> None:
        """The node answered that the user agent is not connected to it."""

    def node_unreachable(self, uaid: Uaid, node_id: str) -> None: ...

    def user_agent_dropped(self, uaid: Uaid) -> None:
        """The user agent was removed because its record has an unknown router type."""

    def bridged(
        self, notification: Notification, via: str, app_id: str, code: int, took_s: float
    ) -> None:
        """The vendor accepted the notification."""

    def bridge_failed(
        self, notification: Notification, via: str, app_id: str, error: Exception, took_s: float
    ) -> None: ...

    def bridge_token_gone(self, uaid: Uaid, via: str) -> None:
        """The vendor does not know the device."""

    def registered(self, uaid: Uaid, via: str) -> None:
        """A new user agent behind a bridge was registered, with its first channel."""

    def registration_updated(self, uaid: Uaid, via: str) -> None:
        """The device's token was replaced."""

    def registration_checked(self, uaid: Uaid, via: str) -> None:
        """The device asked for its channels, which renews its record."""

    def unregistered(self, uaid: Uaid, via: str) -> None: ...

    def channel_added(self, uaid: Uaid, via: str) -> None: ...

    def channel_removed(self, uaid: Uaid, via: str) -> None: ...
