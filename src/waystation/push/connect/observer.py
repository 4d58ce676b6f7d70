"""Port for the driver's reports. The default observer discards them.

`reports.Reports` implements it with events, metrics and log lines.
"""

from collections.abc import Sequence

from waystation.base.errors import WaystationError
from waystation.net.websocket.connection import WebSocket
from waystation.net.websocket.upgrade import Upgrade
from waystation.push.connect.session import Session
from waystation.push.model import ChannelId, Notification, Replaced, Uaid, Update


class Observer:
    """Methods are called after the fact, so their names are in the past tense."""

    def opened(self, connection: WebSocket, upgrade: Upgrade) -> object:
        """The returned note is kept with the connection and passed to later calls."""
        return None

    def hello(self, session: Session, note: object) -> None: ...

    def hello_refused(self, note: object, code: int) -> None: ...

    def registered(self, uaid: Uaid, channel_id: ChannelId, status: int) -> None: ...

    def unregistered(self, uaid: Uaid, channel_id: ChannelId, code: int) -> None: ...

    def taken(self, uaid: Uaid, notification: Notification | Update) -> None:
        """A direct notification was written to the socket."""

    def refused(self, uaid: Uaid) -> None:
        """A direct notification was refused: the user agent is busy."""

    def retrieved(
        self, uaid: Uaid, notifications: Sequence[Notification] | Sequence[Update]
    ) -> None:
        """Stored notifications were written to the socket."""

    def looked(self, uaid: Uaid, rows: int, payload_bytes: int, took_s: float) -> None:
        """Storage was read."""

    def acked(
        self, uaid: Uaid, notification: Notification | Update, code: int, stored: bool
    ) -> None: ...

    def dropped_with_channel(self, notification: Notification | Update) -> None:
        """An unacked notification was dropped because its subscription ended."""

    def nacked(self, uaid: Uaid, version: str, code: int) -> None: ...

    def handed_back(self, uaid: Uaid, notifications: Sequence[Notification | Update]) -> None:
        """Unacked notifications were saved; expired ones are listed too, but not saved."""

    def hand_back_failed(self, error: WaystationError) -> None:
        """A save of unacked notifications failed and will be retried."""

    def superseded(self, replaced: Replaced) -> None:
        """A stored or handed-back notification was replaced by a newer one of its topic, or by
        another version of its channel."""

    def displaced(self, uaid: Uaid) -> None:
        """This connection was closed because the user agent has connected to another node."""

    def took_over(self, uaid: Uaid, node_id: str) -> None:
        """The user agent connected here, and that node closed its older connection."""

    def dropped(self, uaid: Uaid, reason: str) -> None: ...

    def closed(self, session: Session, note: object, code: int, reason: str) -> None: ...
