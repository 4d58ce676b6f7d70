import asyncio

from waystation.base.clock import ManualClock, SystemClock
from waystation.push.connect.alarm import RING_EVERY_S, TICK_S, WAKES_MAX, Alarm


class Woken:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.items: list[str] = []
        self.alarm: Alarm[str] = Alarm(
            self.clock, asyncio.get_running_loop(), lambda item, _: self.items.append(item)
        )

    def pass_time(self, seconds: float) -> list[str]:
        self.clock.advance(seconds)
        self.alarm.ring()
        items, self.items = self.items, []
        return items

    def in_s(self, seconds: float) -> float:
        return self.clock.mono() + seconds


async def test_nobody_is_woken_early_or_twice() -> None:
    woken = Woken()
    woken.alarm.set(woken.in_s(2.0), "a")

    assert woken.pass_time(1.99) == []
    assert woken.pass_time(TICK_S + 0.01) == ["a"]
    assert woken.pass_time(100) == []
    woken.alarm.close()


async def test_who_is_cancelled_is_not_woken() -> None:
    woken = Woken()
    timer = woken.alarm.set(woken.in_s(1.0), "a")

    assert woken.alarm.cancel(timer)
    assert not woken.alarm.cancel(timer)
    assert woken.pass_time(10) == []
    assert len(woken.alarm) == 0


async def test_the_alarm_rings_for_the_earliest() -> None:
    woken = Woken()
    woken.alarm.set(woken.in_s(300), "late")
    assert woken.alarm.rings_at <= woken.in_s(RING_EVERY_S)
    woken.alarm.set(woken.in_s(0.2), "early")

    assert woken.alarm.rings_at <= woken.in_s(0.2 + TICK_S)
    woken.alarm.close()


async def test_a_turn_wakes_no_more_than_it_may_and_the_next_the_rest() -> None:
    woken = Woken()
    for n in range(WAKES_MAX + 5):
        woken.alarm.set(woken.in_s(1), str(n))

    assert len(woken.pass_time(2)) == WAKES_MAX
    assert woken.alarm.rings_at <= woken.clock.mono()
    assert len(woken.pass_time(0)) == 5


async def test_who_is_woken_may_set_its_next_time() -> None:
    clock = ManualClock()
    count = 0

    def again(item: str, mono: float) -> None:
        nonlocal count
        count += 1
        alarm.set(mono + 1.0, item)

    alarm: Alarm[str] = Alarm(clock, asyncio.get_running_loop(), again)
    alarm.set(clock.mono() + 1.0, "a")
    for _ in range(5):
        clock.advance(1.0 + TICK_S)
        alarm.ring()

    assert count == 5
    assert len(alarm) == 1
    alarm.close()


async def test_the_loop_rings_by_itself() -> None:
    rang = asyncio.Event()
    clock = SystemClock()
    alarm: Alarm[str] = Alarm(clock, asyncio.get_running_loop(), lambda *_: rang.set())
    alarm.set(clock.mono() + 0.01, "a")
    await asyncio.wait_for(rang.wait(), 10)

    assert len(alarm) == 0
    alarm.close()


async def test_one_whose_waking_fails_keeps_nobody_else_asleep() -> None:
    loop, clock = asyncio.get_running_loop(), ManualClock()
    told: list[object] = []
    loop.set_exception_handler(lambda _, context: told.append(context["exception"]))
    woken: list[str] = []

    def wake(item: str, _mono: float) -> None:
        woken.append(item)
        if item == "b":
            raise OSError("no descriptor")

    alarm: Alarm[str] = Alarm(clock, loop, wake)
    for item in "abc":
        alarm.set(clock.mono() + 1.0, item)
    alarm.set(clock.mono() + 3.0, "later")
    clock.advance(1.0 + TICK_S)
    alarm.ring()
    loop.set_exception_handler(None)

    assert woken == ["a", "b", "c"]
    assert [str(error) for error in told] == ["no descriptor"]
    assert alarm.rings_at > clock.mono()
    alarm.close()
