"""What the tests of all bridges need: a notification, and time that moves on."""

from typing import Any

import msgspec

from waystation.base.clock import SystemClock
from waystation.push.model import ChannelId, MessageId, Notification, SortKey

CHID = ChannelId(bytes.fromhex("c0ffee0012344abc8def0123456789ab"))
DASHED = "c0ffee00-1234-4abc-8def-0123456789ab"


def notification(**changes: Any) -> Notification:
    plain = Notification(
        CHID,
        MessageId("gAAAAAB"),
        SortKey("02:x"),
        1_700_000_000_000,
        3600,
        data="AbC_",
        headers={"encoding": "aes128gcm"},
    )
    return msgspec.structs.replace(plain, **changes)


class OwnTime(SystemClock):
    """Monotonic time that a test may move on."""

    ahead_s = 0.0

    def mono(self) -> float:
        return super().mono() + self.ahead_s
