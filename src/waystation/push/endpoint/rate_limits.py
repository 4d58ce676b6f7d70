"""Rate limits of POSTs by VAPID key and by subscription.

There is no limit by source address, because a gateway posts for many app servers. Each worker has
buckets with its share of the rate, because requests spread evenly over the workers of a node.
"""

from waystation.base.limits import BucketTable
from waystation.push.errors import RateLimitedError
from waystation.push.settings import Endpoint


class RateLimits:
    __slots__ = ("_by_endpoint", "_by_key")

    def __init__(self, settings: Endpoint, *, workers: int = 1) -> None:
        self._by_key: BucketTable[bytes] | None = _table(
            settings.rate_per_key, settings.burst_per_key, settings.rate_keys_max, workers
        )
        self._by_endpoint: BucketTable[bytes] | None = _table(
            settings.rate_per_endpoint, settings.burst_per_endpoint, settings.rate_keys_max, workers
        )

    @property
    def on(self) -> bool:
        return self._by_key is not None or self._by_endpoint is not None

    def check(self, key_hash: bytes | None, subscription: bytes, mono: float) -> None:
        """Raise `RateLimitedError` above a limit; called after step 7 of a POST. `subscription` is
        uaid and channel id."""
        if self._by_key is not None and key_hash is not None:
            wait_s = self._by_key.take(key_hash, mono)
            if wait_s:
                raise RateLimitedError("Too many requests for this VAPID key", retry_after_s=wait_s)
        if self._by_endpoint is not None:
            wait_s = self._by_endpoint.take(subscription, mono)
            if wait_s:
                raise RateLimitedError(
                    "Too many requests for this subscription", retry_after_s=wait_s
                )


def _table(rate: float, burst: int, keys_max: int, workers: int) -> BucketTable[bytes] | None:
    if not rate:
        return None
    return BucketTable(rate / workers, max(1.0, burst / workers), keys_max=keys_max)
