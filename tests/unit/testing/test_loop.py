import asyncio
import random
import time

import pytest

from waystation.testing.loop import DeadlockError, SimClock, SimulationError, run_sim


def test_hours_pass_at_once() -> None:
    clock = SimClock()
    began = time.monotonic()

    run_sim(asyncio.sleep(3_600), clock)

    assert time.monotonic() - began < 5
    assert clock.mono() == pytest.approx(3_600)
    assert clock.now_ms() == clock.start_ms + 3_600_000


def test_timers_fire_in_their_order_whatever_the_order_they_were_set_in() -> None:
    async def main() -> list[int]:
        fired: list[int] = []
        order = list(range(50))
        random.Random(1).shuffle(order)
        for n in order:
            asyncio.get_running_loop().call_later(n / 10, fired.append, n)
        await asyncio.sleep(10)
        return fired

    assert run_sim(main()) == list(range(50))


def test_waiting_for_nothing_is_a_deadlock() -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(DeadlockError):
        run_sim(main())


def test_being_busy_without_end_is_noticed() -> None:
    async def main() -> None:
        while True:  # noqa: ASYNC110 it is what the test is about
            await asyncio.sleep(0)

    with pytest.raises(SimulationError, match="no time passes"):
        run_sim(main())


def test_a_world_that_outlives_its_limit_is_stopped() -> None:
    async def main() -> None:
        while True:  # noqa: ASYNC110 as above
            await asyncio.sleep(1)

    with pytest.raises(SimulationError, match="after 60 s"):
        run_sim(main(), limit_s=60)


def test_what_fails_in_the_background_fails_the_run() -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_soon(int, "x")
        await asyncio.sleep(1)

    with pytest.raises(ValueError, match="invalid literal"):
        run_sim(main())


def test_executors_run_in_place() -> None:
    async def main() -> str:
        return await asyncio.to_thread(str, 7)

    assert run_sim(main()) == "7"


def test_what_is_left_running_is_cancelled() -> None:
    ended: list[str] = []

    async def forever() -> None:
        try:
            await asyncio.sleep(1e6)
        finally:
            ended.append("cancelled")

    async def main() -> None:
        task = asyncio.create_task(forever())
        await asyncio.sleep(1)
        assert not task.done()

    run_sim(main())

    assert ended == ["cancelled"]


def test_a_skewed_clock_is_off_by_a_constant() -> None:
    clock = SimClock()
    ahead = clock.skewed(1_500)

    run_sim(asyncio.sleep(2), clock)

    assert ahead.now_ms() - clock.now_ms() == 1_500
    assert ahead.now_us() - clock.now_us() == 1_500_000
    assert ahead.mono() == clock.mono()
