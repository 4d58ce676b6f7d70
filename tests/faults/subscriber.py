"""The one user agent of tests whose store is in trouble, its one channel, what is sent there."""

from waystation.base.clock import Clock
from waystation.base.ids import new_uuid4
from waystation.push.model import Notification, Uaid
from waystation.push.store import PushStore
from waystation.testing.conformance import push_faults
from waystation.testing.conformance.push_samples import new_channel, timed_notification

UAID = Uaid(new_uuid4())
CHANNEL = new_channel()


async def subscribe(store: PushStore, clock: Clock) -> None:
    await push_faults.subscribe(store, clock, (UAID, CHANNEL))


def notification(clock: Clock, n: int) -> Notification:
    return timed_notification(CHANNEL, accepted_at_ms=clock.now_ms(), n=f"{n:05}")
