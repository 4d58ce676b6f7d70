"""Settings and functions that all sessions of a worker share."""

import random
from collections.abc import Callable
from functools import partial

from waystation.push.model import ChannelId, Uaid
from waystation.push.settings import Connect

from .broadcasts import Broadcasts
from .cursor_window import CursorWindow
from .window import DeliveryWindow

# A wide range, so that user agents whose switch was refused do not retry together.
_SWITCH_AFTER_S = partial(random.uniform, 1.0, 1800.0)


class SessionContext:
    """Settings, and functions that a session needs but must not compute itself."""

    __slots__ = (
        "broadcasts",
        "endpoint_for",
        "keeps_cursor",
        "more_info_url",
        "new_uaid",
        "node_id",
        "settings",
        "switch_after_s",
    )

    def __init__(
        self,
        settings: Connect,
        *,
        node_id: str,
        broadcasts: Broadcasts,
        endpoint_for: Callable[[Uaid, ChannelId, bytes | None, bool], str],
        new_uaid: Callable[[], Uaid],
        more_info_url: str = "",
        keeps_cursor: bool = False,
        switch_after_s: Callable[[], float] = _SWITCH_AFTER_S,
    ) -> None:
        self.settings = settings
        self.node_id = node_id
        self.broadcasts = broadcasts
        self.endpoint_for = endpoint_for  # uaid, channel, VAPID public key, SimplePush?
        self.new_uaid = new_uaid
        self.more_info_url = more_info_url
        self.keeps_cursor = keeps_cursor  # Autopush's nodes use the same store
        self.switch_after_s = switch_after_s  # delay before a refused month switch is retried

    def new_window(self) -> DeliveryWindow:
        window = CursorWindow if self.keeps_cursor else DeliveryWindow
        return window(unacked_max=self.settings.delivery_window)
