"""The model: it never suspends, and the same operations always give the same answers."""

import random
from collections.abc import Coroutine
from typing import Any, TypeVar

from waystation.base.clock import ManualClock
from waystation.push.model import ChannelId, Milestone, SortKey, Uaid, UserAgent
from waystation.storage.memory.push import MemoryPushStore
from waystation.testing.conformance.push_store import timed_notification, topic_notification

T = TypeVar("T")


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never suspends."""
    try:
        work.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("it suspended")


def run(seed: int) -> list[object]:
    chance, clock = random.Random(seed), ManualClock()
    store = MemoryPushStore(clock)
    answers: list[object] = []
    for step in range(400):
        uaid = Uaid(bytes([chance.randrange(4)]) * 16)
        channel_id = ChannelId(bytes([chance.randrange(3)]) * 16)
        now_ms = clock.now_ms()
        topic = topic_notification(channel_id, "t", accepted_at_ms=now_ms, message_id=f"m{step}")
        timed = timed_notification(
            channel_id, accepted_at_ms=now_ms, n=step, ttl_s=5, message_id=f"m{step}"
        )
        agent = UserAgent(uaid=uaid, connected_at_ms=now_ms, node_id=f"n{step}")
        works: list[Coroutine[Any, Any, object]] = [
            store.claim_route(agent),
            store.add_channel(uaid, channel_id, channels_max=2),
            store.remove_channel(uaid, channel_id),
            store.remove_user_agent(uaid),
            store.save(uaid, topic),
            store.save(uaid, timed),
            store.save_if_newer(uaid, [topic, timed]),
            store.fetch(uaid, now_ms=now_ms, after=SortKey(""), limit=3),
            store.sweep(now_ms=now_ms, limit=2),
            store.track(
                f"r{step % 5}", Milestone.STORED, at_ms=now_ms, expires_at_ms=now_ms + 9000
            ),
            store.count_milestones(now_ms=now_ms),
        ]
        chosen = works.pop(chance.randrange(len(works)))
        for other in works:
            other.close()
        answers.append(at_once(chosen))
        clock.advance(chance.choice([0, 0.001, 1]))
    return answers


def test_a_seed_replays_a_run_and_nothing_suspends() -> None:
    assert run(7) == run(7)
    assert run(7) != run(8)
