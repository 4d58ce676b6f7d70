"""What holds for every session of a worker, handed to each as one object."""

import random
from collections.abc import Callable
from functools import partial

from waystation.push.connect.broadcasts import Broadcasts
from waystation.push.connect.cursor import CursorWindow
from waystation.push.connect.window import DeliveryWindow
from waystation.push.model import ChannelId, Uaid
from waystation.push.settings import Connect

# Far apart, so that those whose change of month was refused do not come back together.
_SWITCH_AFTER_S = partial(random.uniform, 1.0, 1800.0)


class Terms:
    """Settings, and what a session cannot know by itself."""

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
        self.keeps_cursor = keeps_cursor  # Autopush's nodes are beside ours
        self.switch_after_s = switch_after_s  # how long a refused change of month is put off

    def new_window(self) -> DeliveryWindow:
        window = CursorWindow if self.keeps_cursor else DeliveryWindow
        return window(unacked_max=self.settings.delivery_window)
