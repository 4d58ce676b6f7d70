"""Memory is given back in quiet moments after a burst."""

import asyncio

import pytest

from waystation.base import memory_trim
from waystation.base.memory_trim import QuietTrim, trim_memory


def test_giving_memory_back_is_possible_at_any_time() -> None:
    kept = [bytes(1000) for _ in range(1000)]
    trim_memory()

    assert len(kept) == 1000


async def test_it_happens_when_a_burst_is_over_and_not_again_without_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trimmed: list[int] = []
    moved = 0
    monkeypatch.setattr(memory_trim, "trim_memory", lambda: trimmed.append(moved))
    looks = 0

    def look() -> int:
        nonlocal moved, looks
        looks += 1
        if looks < 5:
            moved += 30  # a burst that goes on
        return moved

    task = asyncio.create_task(QuietTrim(look, burst=100, interval_s=0.001).run())
    while looks < 12:  # noqa: ASYNC110 looks are what is waited for
        await asyncio.sleep(0.001)
    task.cancel()

    assert trimmed == [120]
