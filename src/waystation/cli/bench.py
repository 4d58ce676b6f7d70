"""`waystation bench`: the load tools of the source tree."""

import os
import sys
from pathlib import Path

import typer

from .terminal import give_up

# Everything after `bench` belongs to the load tools, `--help` too.
CONTEXT: dict[str, object] = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "help_option_names": [],
}


def bench(context: typer.Context) -> None:
    """Run the load tools of benchmarks/ on this machine; they get all arguments."""
    root = Path(__file__).parents[3]
    if not (root / "benchmarks" / "__main__.py").is_file():
        give_up(
            "the load tools are not part of the installed package. Get the sources, then:"
            " make bench"
        )
    os.chdir(root)
    arguments = [sys.executable, "-m", "benchmarks", *context.args]
    os.execv(sys.executable, arguments)  # noqa: S606 our own module
