"""Loads structlog without rich. Import this module first in a process that must start fast.

structlog imports rich, if it is installed, to format tracebacks. Our log lines never contain
tracebacks with values (they could print secrets). The import takes a third of a worker's start
time, so rich is hidden while structlog is loaded.
"""

import sys
from typing import cast

_HIDDEN = ("rich", "better_exceptions")


def _load_structlog() -> None:
    modules = cast(dict[str, object], sys.modules)
    hidden = [name for name in _HIDDEN if name not in modules]
    for name in hidden:
        modules[name] = None  # `import rich` raises ImportError, for which structlog is prepared
    try:
        import structlog  # noqa: F401, PLC0415  # pyright: ignore[reportUnusedImport]
    finally:
        for name in hidden:
            del modules[name]


_load_structlog()
