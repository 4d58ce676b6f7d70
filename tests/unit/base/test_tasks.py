import asyncio
import contextlib
import gc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop

from waystation.base import tasks as tasks_module
from waystation.base.tasks import Done, Tasks, TurnBatch, each, eager, in_task

Scenario = Callable[[asyncio.AbstractEventLoop], Awaitable[None]]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Scenario], None]:
    """Runs a scenario on one of the two loops; a step that fails silently fails the test."""

    def runner(scenario: Scenario) -> None:
        loud: list[dict[str, Any]] = []

        async def main() -> None:
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda _, context: loud.append(context))
            await asyncio.wait_for(scenario(loop), 10)

        factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop
        with asyncio.Runner(loop_factory=factory) as loops:
            loops.run(main())
        gc.collect()
        assert loud == []

    return runner


class TestEager:
    def test_a_coroutine_that_never_waits_is_done_at_once(self, run: Any) -> None:
        async def scenario(loop: asyncio.AbstractEventLoop) -> None:
            async def answer() -> int:
                return 42

            before = asyncio.all_tasks()
            assert eager(answer(), loop) == Done(42)
            assert asyncio.all_tasks() == before

        run(scenario)

    def test_an_exception_of_the_first_step_comes_out_here(self, run: Any) -> None:
        async def scenario(loop: asyncio.AbstractEventLoop) -> None:
            async def fails() -> None:
                raise KeyError("x")

            with pytest.raises(KeyError):
                eager(fails(), loop)

        run(scenario)

    def test_the_rest_becomes_a_task_with_the_same_result(self, run: Any) -> None:
        async def scenario(loop: asyncio.AbstractEventLoop) -> None:
            future: asyncio.Future[int] = loop.create_future()

            async def adds() -> int:
                first = await future
                await asyncio.sleep(0)
                await asyncio.sleep(0.001)
                return first + 1

            task = eager(adds(), loop)
            assert isinstance(task, asyncio.Task)
            future.set_result(1)
            assert await task == 2

        run(scenario)

    def test_a_bare_yield_is_a_wait_too(self, run: Any) -> None:
        async def scenario(loop: asyncio.AbstractEventLoop) -> None:
            async def yields() -> str:
                await asyncio.sleep(0)
                return "after"

            task = eager(yields(), loop)
            assert isinstance(task, asyncio.Task)
            assert await task == "after"

        run(scenario)

    def test_who_needs_a_task_can_have_one_from_the_first_step_on(self, run: Any) -> None:
        async def scenario(loop: asyncio.AbstractEventLoop) -> None:
            async def patient() -> str:
                await in_task()
                async with asyncio.timeout(5):
                    await asyncio.sleep(0)
                    return "in time"

            started: asyncio.Future[Any] = loop.create_future()
            loop.call_soon(lambda: started.set_result(eager(patient(), loop)))
            assert await (await started) == "in time"

        run(scenario)

    def test_a_future_that_is_done_before_the_task_runs_is_no_trouble(self, run: Any) -> None:
        async def scenario(loop: asyncio.AbstractEventLoop) -> None:
            future: asyncio.Future[int] = loop.create_future()

            async def waits() -> int:
                return await future

            task = eager(waits(), loop)
            assert isinstance(task, asyncio.Task)
            future.set_result(5)
            assert await task == 5

        run(scenario)

    def test_several_may_wait_for_the_same_future(self, run: Any) -> None:
        """The flag by which a future tells `await` from `yield` is shared by all who wait."""

        async def scenario(loop: asyncio.AbstractEventLoop) -> None:
            future: asyncio.Future[int] = loop.create_future()

            async def waits() -> int:
                return await future

            others = [loop.create_task(waits()) for _ in range(2)]
            mine = [eager(waits(), loop) for _ in range(3)]
            await asyncio.sleep(0)
            future.set_result(7)
            tasks = [task for task in mine if isinstance(task, asyncio.Task)]
            assert await asyncio.gather(*others, *tasks) == [7] * 5

        run(scenario)

    def test_a_later_exception_is_the_tasks(self, run: Any) -> None:
        async def scenario(loop: asyncio.AbstractEventLoop) -> None:
            async def fails_later() -> None:
                await asyncio.sleep(0)
                raise KeyError("later")

            task = eager(fails_later(), loop)
            assert isinstance(task, asyncio.Task)
            with pytest.raises(KeyError, match="later"):
                await task

        run(scenario)

    def test_an_exception_of_the_awaited_future_arrives_inside(self, run: Any) -> None:
        async def scenario(loop: asyncio.AbstractEventLoop) -> None:
            future: asyncio.Future[int] = loop.create_future()

            async def catches() -> str:
                try:
                    await future
                except OSError:
                    await asyncio.sleep(0)
                    return "caught"
                return "missed"

            task = eager(catches(), loop)
            assert isinstance(task, asyncio.Task)
            loop.call_soon(future.set_exception, OSError())
            assert await task == "caught"

        run(scenario)

    @pytest.mark.parametrize("turns", [0, 1, 3])
    def test_cancelling_at_any_time_reaches_the_coroutine(self, run: Any, turns: int) -> None:
        """With no turn in between, the task is cancelled before its own first step."""

        async def scenario(loop: asyncio.AbstractEventLoop) -> None:
            cleaned: list[str] = []

            async def cleans() -> None:
                try:
                    await loop.create_future()
                except asyncio.CancelledError:
                    await asyncio.sleep(0)
                    cleaned.append("waited while cleaning")
                    raise

            task = eager(cleans(), loop)
            assert isinstance(task, asyncio.Task)
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            assert task.cancelled()
            assert cleaned == ["waited while cleaning"]

        run(scenario)

    def test_timeouts_work_after_the_first_wait(self, run: Any) -> None:
        async def scenario(loop: asyncio.AbstractEventLoop) -> None:
            async def slow() -> str:
                await asyncio.sleep(0)
                try:
                    async with asyncio.timeout(0.01):
                        await loop.create_future()
                except TimeoutError:
                    return "in time"
                return "never"

            task = eager(slow(), loop)
            assert isinstance(task, asyncio.Task)
            assert await task == "in time"

        run(scenario)

    def test_in_a_callback_the_first_step_has_no_current_task(self, run: Any) -> None:
        async def scenario(loop: asyncio.AbstractEventLoop) -> None:
            seen: list[object] = []

            async def looks() -> None:
                seen.append(asyncio.current_task())

            loop.call_soon(lambda: eager(looks(), loop))
            await asyncio.sleep(0.001)
            assert seen == [None]

        run(scenario)


class TestTasks:
    async def test_a_failure_is_told_once_with_the_name_of_the_task(self) -> None:
        told: list[tuple[str, BaseException]] = []
        tasks = Tasks(lambda name, error: told.append((name, error)))
        boom = ValueError("boom")

        async def fails() -> None:
            raise boom

        tasks.spawn("sweeper", fails())
        await asyncio.sleep(0.01)

        assert told == [("sweeper", boom)]
        assert len(tasks) == 0

    async def test_a_duty_that_raises_is_started_again_and_the_reason_is_told_once(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tasks_module, "KEEP_PAUSE_S", 0.0)
        told: list[tuple[str, str]] = []
        tasks = Tasks(lambda name, error: told.append((name, str(error))))
        reasons = ["no descriptor", "no descriptor", "no room", ""]
        goes_on = asyncio.Event()

        async def sweep() -> None:
            if reason := reasons.pop(0):
                raise OSError(reason)
            goes_on.set()
            await asyncio.Event().wait()

        tasks.keep("sweeper", sweep)
        await asyncio.wait_for(goes_on.wait(), 10)

        assert told == [("sweeper", "no descriptor"), ("sweeper", "no room")]
        assert len(tasks) == 1
        await tasks.close()
        assert len(told) == 2

    async def test_a_duty_that_returns_is_over(self) -> None:
        tasks = Tasks(lambda *_: None)
        await tasks.keep("once", lambda: asyncio.sleep(0))

        assert len(tasks) == 0

    async def test_closing_cancels_everything_and_waits_for_it(self) -> None:
        told: list[str] = []
        ended: list[str] = []
        tasks = Tasks(lambda name, _: told.append(name))

        async def forever(name: str) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                ended.append(name)

        for name in ("a", "b"):
            tasks.spawn(name, forever(name))
        await asyncio.sleep(0)

        assert await tasks.close() == []
        assert sorted(ended) == ["a", "b"]
        assert told == []

    async def test_closing_names_those_that_do_not_end_in_time(self) -> None:
        tasks = Tasks(lambda *_: None)
        release = asyncio.Event()

        async def stubborn() -> None:
            while not release.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await release.wait()

        task = tasks.spawn("stubborn", stubborn())
        await asyncio.sleep(0)

        assert await tasks.close(timeout_s=0.01) == ["stubborn"]
        release.set()
        await task

    async def test_a_task_of_the_owner_may_close_the_owner(self) -> None:
        tasks = Tasks(lambda *_: None)
        closing = tasks.spawn("closer", tasks.close())

        assert await closing == []

    async def test_nothing_is_spawned_after_closing(self) -> None:
        tasks = Tasks(lambda *_: None)
        await tasks.close()

        with pytest.raises(RuntimeError, match="late"):
            tasks.spawn("late", asyncio.sleep(0))


def test_each_goes_on_after_an_item_that_raises() -> None:
    taken: list[int] = []
    failed: list[Exception] = []

    def take(item: int) -> None:
        taken.append(10 // item)

    each((1, 0, 2), take, failed.append)

    assert taken == [10, 5]
    assert [type(error) for error in failed] == [ZeroDivisionError]


class TestTurns:
    async def test_what_comes_in_one_turn_is_handed_over_together(self) -> None:
        batches: list[list[int]] = []
        batch: TurnBatch[int] = TurnBatch(batches.append, asyncio.get_running_loop())

        for item in (1, 2, 3):
            batch.add(item)
        assert batches == []
        await asyncio.sleep(0.001)
        batch.add(4)
        await asyncio.sleep(0.001)

        assert batches == [[1, 2, 3], [4]]

    async def test_a_full_batch_does_not_wait_for_the_end_of_the_turn(self) -> None:
        batches: list[list[int]] = []
        batch: TurnBatch[int] = TurnBatch(batches.append, asyncio.get_running_loop(), items_max=2)

        for item in range(5):
            batch.add(item)
        assert batches == [[0, 1], [2, 3]]
        await asyncio.sleep(0.001)

        assert batches == [[0, 1], [2, 3], [4]]

    async def test_items_added_while_flushing_come_in_the_next_turn(self) -> None:
        batches: list[list[int]] = []

        def flush(items: list[int]) -> None:
            batches.append(items)
            if items == [1]:
                batch.add(2)

        batch: TurnBatch[int] = TurnBatch(flush, asyncio.get_running_loop())
        batch.add(1)
        await asyncio.sleep(0.002)

        assert batches == [[1], [2]]

    async def test_a_flush_by_hand_leaves_nothing_for_the_end_of_the_turn(self) -> None:
        batches: list[list[int]] = []
        batch: TurnBatch[int] = TurnBatch(batches.append, asyncio.get_running_loop())
        batch.add(1)
        batch.flush_now()
        await asyncio.sleep(0.001)

        assert batches == [[1]]
