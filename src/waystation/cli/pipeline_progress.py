"""One bar a stage while Spark works, on a terminal only."""

import contextlib
import sys
import threading
from collections.abc import Generator
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

LOOK_S = 0.3


@contextlib.contextmanager
def stage_bars(spark: Any) -> Generator[None]:
    """A thread asks Spark which stages run, and draws them on stderr until the block ends."""
    if not sys.stderr.isatty():
        yield
        return
    stop = threading.Event()
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    thread = threading.Thread(target=_draw, args=(spark, progress, stop), daemon=True)
    with progress:
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(2.0)


def _draw(spark: Any, progress: Progress, stop: threading.Event) -> None:
    tracker = spark.sparkContext.statusTracker()
    bars: dict[int, TaskID] = {}
    while not stop.wait(LOOK_S):
        with contextlib.suppress(Exception):  # the session may be going away
            active = set(tracker.getActiveStageIds())
            for stage in active:
                info = tracker.getStageInfo(stage)
                if info is None:
                    continue
                if stage not in bars:
                    bars[stage] = progress.add_task(f"stage {stage}", total=info.numTasks)
                progress.update(bars[stage], completed=info.numCompletedTasks)
            for stage in set(bars) - active:
                progress.remove_task(bars.pop(stage))
