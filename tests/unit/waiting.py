"""Waiting for something to become true, on a machine that may be busy."""

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object], timeout_s: float = 10.0) -> None:
    for _ in range(round(timeout_s / 0.005)):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it did not become true in time")
