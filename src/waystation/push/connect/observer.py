"""What the driver reports as it happens. This one listens and keeps nothing.

`reports.py` has the one that turns reports into events, numbers and lines.
"""

from collections.abc import Sequence

from waystation.base.errors import WaystationError
from waystation.net.websocket.connection import WebSocket
from waystation.net.websocket.upgrade import Upgrade
from waystation.push.connect.session import Session
from waystation.push.model import ChannelId, Notification, Replaced, Uaid, Update


class Observer:
    """Past tense: everything here has been done."""

    def opened(self, connection: WebSocket, upgrade: Upgrade) -> object:
        """What is returned is kept with the connection and comes back with `closed`."""
        return None

    def hello(self, session: Session, note: object) -> None: ...

    def hello_refused(self, note: object, code: int) -> None: ...

    def registered(self, uaid: Uaid, channel_id: ChannelId, status: int) -> None: ...

    def unregistered(self, uaid: Uaid, channel_id: ChannelId, code: int) -> None: ...

    def taken(self, uaid: Uaid, notification: Notification | Update) -> None:
        """Direct, and written to the socket."""

    def refused(self, uaid: Uaid) -> None:
        """Direct, and the user agent could not take it."""

    def retrieved(
        self, uaid: Uaid, notifications: Sequence[Notification] | Sequence[Update]
    ) -> None:
        """Stored, and written to the socket."""

    def looked(self, uaid: Uaid, rows: int, payload_bytes: int, took_s: float) -> None:
        """Storage was read."""

    def acked(
        self, uaid: Uaid, notification: Notification | Update, code: int, stored: bool
    ) -> None: ...

    def dropped_with_channel(self, notification: Notification | Update) -> None:
        """Sent and not acked, and nobody waits for it any more."""

    def nacked(self, uaid: Uaid, version: str, code: int) -> None: ...

    def handed_back(self, uaid: Uaid, notifications: Sequence[Notification | Update]) -> None:
        """Stored, as far as that was worth it."""

    def hand_back_failed(self, error: WaystationError) -> None:
        """For now; it is tried again."""

    def superseded(self, replaced: Replaced) -> None:
        """Stored before or handed back now; a newer one of its topic, or another version of its
        channel, is stored instead."""

    def displaced(self, uaid: Uaid) -> None:
        """It has connected elsewhere, and this connection was closed for it."""

    def took_over(self, uaid: Uaid, node_id: str) -> None:
        """It has connected here, and its older connection at that node was closed for it."""

    def dropped(self, uaid: Uaid, reason: str) -> None: ...

    def closed(self, session: Session, note: object, code: int, reason: str) -> None: ...
