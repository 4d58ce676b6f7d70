"""What holds for every session of a worker, handed to each as one object."""

from collections.abc import Callable

from waystation.push.connect.broadcasts import Broadcasts
from waystation.push.model import ChannelId, Uaid
from waystation.push.settings import Connect


class Terms:
    """Settings, and what a session cannot know by itself."""

    __slots__ = ("broadcasts", "endpoint_for", "more_info_url", "new_uaid", "node_id", "settings")

    def __init__(
        self,
        settings: Connect,
        *,
        node_id: str,
        broadcasts: Broadcasts,
        endpoint_for: Callable[[Uaid, ChannelId, bytes | None, bool], str],
        new_uaid: Callable[[], Uaid],
        more_info_url: str = "",
    ) -> None:
        self.settings = settings
        self.node_id = node_id
        self.broadcasts = broadcasts
        self.endpoint_for = endpoint_for  # uaid, channel, VAPID public key, SimplePush?
        self.new_uaid = new_uaid
        self.more_info_url = more_info_url
