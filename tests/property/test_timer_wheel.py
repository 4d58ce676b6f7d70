"""The wheel beside a sorted list: whatever is added, cancelled and waited for, both agree."""

from math import ceil

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from waystation.base.timer_wheel import TimerWheel

TICK_S = 0.25  # exact in binary, so that the model needs no tolerance


class WheelBesideSortedList(RuleBasedStateMachine):
    handles = Bundle("handles")

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000.0
        self.wheel: TimerWheel[int] = TimerWheel(TICK_S, 8, self.now)
        self.done_tick = 0
        self.waiting: dict[int, tuple[int, int]] = {}  # item -> (tick, handle)
        self.count = 0

    def tick_of(self, mono: float) -> int:
        return ceil((mono - 1_000.0) / TICK_S)

    @rule(target=handles, ahead_s=st.integers(-20, 200).map(lambda n: n / 16))
    def add(self, ahead_s: float) -> tuple[int, int]:
        self.count += 1
        handle = self.wheel.add(self.now + ahead_s, self.count)
        tick = max(self.tick_of(self.now + ahead_s), self.done_tick + 1)
        self.waiting[self.count] = (tick, handle)
        return self.count, handle

    @rule(entry=consumes(handles))
    def cancel(self, entry: tuple[int, int]) -> None:
        item, handle = entry
        assert self.wheel.cancel(handle) == (self.waiting.pop(item, None) is not None)
        assert not self.wheel.cancel(handle)

    @rule(
        step_s=st.one_of(
            st.integers(0, 16).map(lambda n: n / 16), st.integers(0, 40).map(lambda n: n / 4)
        ),
        limit=st.one_of(st.none(), st.integers(1, 4)),
    )
    def advance(self, step_s: float, limit: int | None) -> None:
        self.now += step_s
        target = int((self.now - 1_000.0) / TICK_S)
        due = sorted((tick, item) for item, (tick, _) in self.waiting.items() if tick <= target)
        taken = due if limit is None else due[:limit]

        assert self.wheel.advance(self.now, limit) == [item for _, item in taken]
        for _, item in taken:
            del self.waiting[item]
        left = due[len(taken) :]
        self.done_tick = max(self.done_tick, left[0][0] - 1 if left else target)

    @rule()
    def sleep_until_next(self) -> None:
        at = self.wheel.next_at()
        if at is None:
            return
        earliest = min(tick for tick, _ in self.waiting.values())
        assert at <= 1_000.0 + earliest * TICK_S, "nothing is due before next_at"
        assert at > 1_000.0 + self.done_tick * TICK_S, "the driver never spins"
        self.advance(max(0.0, at - self.now), None)

    @invariant()
    def they_agree_on_how_many_wait(self) -> None:
        assert len(self.wheel) == len(self.waiting)
        assert (self.wheel.next_at() is None) == (not self.waiting)


WheelBesideSortedList.TestCase.settings = settings(
    max_examples=100, stateful_step_count=60, deadline=None
)
TestWheelBesideSortedList = WheelBesideSortedList.TestCase
