"""Conformance suite for push stores: the contract of `waystation.push.store`.

A backend writes a subclass with its `capabilities` and the fixture `store`:

    class TestRedis(PushStoreConformance):
        capabilities = RedisPushStore.capabilities

        @pytest.fixture
        async def store(self, clock: ManualClock) -> AsyncIterator[PushStore]: ...

Ids are random in every test, so tests may share a store. Time is `clock`; tests that advance it are
skipped if the backend expires rows by its own clock.
"""

from waystation.testing.conformance.push_notifications import NotificationConformance
from waystation.testing.conformance.push_records import RecordConformance
from waystation.testing.conformance.push_samples import (
    fetch_all,
    new_channel,
    new_message_id,
    save_many,
    sweep_all,
    timed_notification,
    topic_notification,
)
from waystation.testing.conformance.push_user_agents import UserAgentConformance

__all__ = [
    "PushStoreConformance",
    "fetch_all",
    "new_channel",
    "new_message_id",
    "save_many",
    "sweep_all",
    "timed_notification",
    "topic_notification",
]


class PushStoreConformance(UserAgentConformance, NotificationConformance, RecordConformance):
    """The whole contract."""
