"""Checks that a transform returns its declared columns, in order, with their types.

A transform ends in a `select` of its declared schema, and readers of the table rely on it. The
check looks at the plan, never at rows, so it runs at every call.
"""

import functools
from collections.abc import Callable
from typing import ParamSpec

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

P = ParamSpec("P")


def returns(promised: StructType) -> Callable[[Callable[P, DataFrame]], Callable[P, DataFrame]]:
    """The transform returns exactly the columns of `promised`; a column may be null."""

    def decorate(transform: Callable[P, DataFrame]) -> Callable[P, DataFrame]:
        @functools.wraps(transform)
        def checked(*args: P.args, **kwargs: P.kwargs) -> DataFrame:
            frame = transform(*args, **kwargs)
            returned, expected = _shape(frame.schema), _shape(promised)
            assert returned == expected, f"{transform.__name__} returns {returned}, not {expected}"
            return frame

        return checked

    return decorate


def _shape(of: StructType) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in of.fields]
