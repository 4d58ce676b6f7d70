"""Structs that are made often and written to often.

msgspec makes a struct in a quarter of what an `__init__` takes, but writing an attribute of one
takes 20 ns where a plain object with slots takes 5: each time it looks whether the garbage
collector must hear of the object now. An object that holds something of the collector's from the
start need not be looked at: it is known already.
"""

from typing import TypeVar

import msgspec

S = TypeVar("S", bound=msgspec.Struct)


def quick_to_write(kind: type[S]) -> type[S]:
    """For a struct with a field that always holds an object of ours, a list or the like. One whose
    fields are all numbers and texts at first, and a circle later, would never be collected."""
    # Both, because a type has one place for the two: only if they agree is it used directly.
    type.__setattr__(kind, "__setattr__", object.__setattr__)
    type.__setattr__(kind, "__delattr__", object.__delattr__)
    return kind
