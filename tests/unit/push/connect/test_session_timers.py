import asyncio

from waystation.base.clock import ManualClock, SystemClock
from waystation.push.connect.session_timers import FIRE_EVERY_S, TICK_S, WAKES_MAX, SessionTimers


class Woken:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.items: list[str] = []
        self.timers: SessionTimers[str] = SessionTimers(
            self.clock, asyncio.get_running_loop(), lambda item, _: self.items.append(item)
        )

    def pass_time(self, seconds: float) -> list[str]:
        self.clock.advance(seconds)
        self.timers.fire()
        items, self.items = self.items, []
        return items

    def in_s(self, seconds: float) -> float:
        return self.clock.mono() + seconds


async def test_an_item_is_woken_once_and_not_early() -> None:
    woken = Woken()
    woken.timers.set(woken.in_s(2.0), "a")

    assert woken.pass_time(1.99) == []
    assert woken.pass_time(TICK_S + 0.01) == ["a"]
    assert woken.pass_time(100) == []
    woken.timers.close()


async def test_a_cancelled_item_is_not_woken() -> None:
    woken = Woken()
    timer = woken.timers.set(woken.in_s(1.0), "a")

    assert woken.timers.cancel(timer)
    assert not woken.timers.cancel(timer)
    assert woken.pass_time(10) == []
    assert len(woken.timers) == 0


async def test_the_earliest_item_decides_when_the_timer_fires() -> None:
    woken = Woken()
    woken.timers.set(woken.in_s(300), "late")
    assert woken.timers.fires_at <= woken.in_s(FIRE_EVERY_S)
    woken.timers.set(woken.in_s(0.2), "early")

    assert woken.timers.fires_at <= woken.in_s(0.2 + TICK_S)
    woken.timers.close()


async def test_one_turn_wakes_at_most_wakes_max_items() -> None:
    woken = Woken()
    for n in range(WAKES_MAX + 5):
        woken.timers.set(woken.in_s(1), str(n))

    assert len(woken.pass_time(2)) == WAKES_MAX
    assert woken.timers.fires_at <= woken.clock.mono()
    assert len(woken.pass_time(0)) == 5


async def test_a_woken_item_may_be_set_again() -> None:
    clock = ManualClock()
    count = 0

    def again(item: str, mono: float) -> None:
        nonlocal count
        count += 1
        timers.set(mono + 1.0, item)

    timers: SessionTimers[str] = SessionTimers(clock, asyncio.get_running_loop(), again)
    timers.set(clock.mono() + 1.0, "a")
    for _ in range(5):
        clock.advance(1.0 + TICK_S)
        timers.fire()

    assert count == 5
    assert len(timers) == 1
    timers.close()


async def test_the_event_loop_fires_the_timer() -> None:
    fired = asyncio.Event()
    clock = SystemClock()
    timers: SessionTimers[str] = SessionTimers(
        clock, asyncio.get_running_loop(), lambda *_: fired.set()
    )
    timers.set(clock.mono() + 0.01, "a")
    await asyncio.wait_for(fired.wait(), 10)

    assert len(timers) == 0
    timers.close()


async def test_a_failing_item_does_not_stop_the_others() -> None:
    loop, clock = asyncio.get_running_loop(), ManualClock()
    told: list[object] = []
    loop.set_exception_handler(lambda _, context: told.append(context["exception"]))
    woken: list[str] = []

    def wake(item: str, _mono: float) -> None:
        woken.append(item)
        if item == "b":
            raise OSError("no descriptor")

    timers: SessionTimers[str] = SessionTimers(clock, loop, wake)
    for item in "abc":
        timers.set(clock.mono() + 1.0, item)
    timers.set(clock.mono() + 3.0, "later")
    clock.advance(1.0 + TICK_S)
    timers.fire()
    loop.set_exception_handler(None)

    assert woken == ["a", "b", "c"]
    assert [str(error) for error in told] == ["no descriptor"]
    assert timers.fires_at > clock.mono()
    timers.close()
