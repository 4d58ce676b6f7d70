"""Builds endpoint URLs: what a user agent gets for a subscription and an app server posts to."""

import hashlib

from waystation.push.model import ChannelId, Uaid
from waystation.push.token import Keys


class EndpointUrls:
    """Builds the endpoint URL of a subscription (webpush §5.1, §9)."""

    def __init__(self, keys: Keys, endpoint_url: str, simplepush: str) -> None:
        self._keys = keys
        self._url = endpoint_url.rstrip("/")
        self._simple_path = "/push/" if simplepush == "s" else "/spush/v1/"

    def url(self, uaid: Uaid, channel_id: ChannelId, key: bytes | None, simple: bool) -> str:
        if simple:
            return self._url + self._simple_path + self._keys.endpoint_token(uaid, channel_id)
        if key is None:
            return f"{self._url}/wpush/v1/{self._keys.endpoint_token(uaid, channel_id)}"
        token = self._keys.endpoint_token(uaid, channel_id, hashlib.sha256(key).digest())
        return f"{self._url}/wpush/v2/{token}"
