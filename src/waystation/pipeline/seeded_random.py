"""Reproducible random numbers for synthetic traffic: a hash of (seed, entity, number).

`draw` computes one number, `Draws` a column of them; both give the same values. The hash is Spark's
xxhash64 over three longs without the sign bit: 63 bits. Columns are unsigned Arrow arrays because
the hash needs sums and products that wrap around.
"""

from importlib import import_module
from typing import Any

_arrow: Any = import_module("pyarrow")
_compute: Any = import_module("pyarrow.compute")

BITS = 63
_MASK = (1 << 64) - 1
_P1, _P2, _P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P4, _P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
_START = 42  # Spark's initial seed
_UNSIGNED: Any = _arrow.uint64()


def draw(seed: int, entity: int, number: int) -> int:
    """One random number."""
    return _mixed(_turned(number), _mixed(_turned(entity), _mixed(_turned(seed), _START))) >> 1


def signed(value: int) -> int:
    """A number in the signed range of an id hash."""
    return value - (1 << BITS - 1)


class Draws:
    """Random numbers for a column of entities; common parts are computed once."""

    def __init__(self, seed: int, entities: Any) -> None:
        start = _mixed(_turned(seed), _START)
        self._shared = _mixed_column(_turned_column(entities.view(_UNSIGNED)), whole(start))

    def of(self, rows: Any) -> "Draws":
        """The draws for a selection of the entities, by position."""
        some = object.__new__(Draws)
        some._shared = self._shared.take(rows)
        return some

    def at(self, number: int | Any) -> Any:
        """One number per entity; `number` may be a column."""
        if isinstance(number, int):
            turned = whole(_turned(number))
        else:
            turned = _turned_column(number.view(_UNSIGNED))
        return _compute.shift_right(_mixed_column(turned, self._shared), whole(1))

    def below(self, number: int | Any, bound: int | Any) -> Any:
        """Like `at`, from 0 to below `bound`, as signed integers."""
        drawn = self.at(number)
        if isinstance(bound, int):
            bound = whole(bound)
        else:
            bound = bound.view(_UNSIGNED)
        return remainder(drawn, bound).view(_arrow.int64())

    def ids(self, number: int) -> Any:
        """Like `at`, in the signed range of an id hash."""
        return _compute.subtract(self.at(number).view(_arrow.int64()), 1 << BITS - 1)


def remainder(values: Any, bound: Any) -> Any:
    """`values % bound`; Arrow has no remainder function."""
    return _compute.subtract(values, _compute.multiply(_compute.divide(values, bound), bound))


def whole(value: int) -> Any:
    return _arrow.scalar(value, _UNSIGNED)


def _turned(value: int) -> int:
    return _rotate(value * _P2 & _MASK, 31) * _P1 & _MASK


def _mixed(turned: int, seed: int) -> int:
    mixed = (seed + _P5 + 8 & _MASK) ^ turned
    mixed = _rotate(mixed, 27) * _P1 + _P4 & _MASK
    mixed = (mixed ^ mixed >> 33) * _P2 & _MASK
    mixed = (mixed ^ mixed >> 29) * _P3 & _MASK
    return mixed ^ mixed >> 32


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> 64 - bits) & _MASK


def _turned_column(values: Any) -> Any:
    return _compute.multiply(_rotate_column(_compute.multiply(values, whole(_P2)), 31), whole(_P1))


def _mixed_column(turned: Any, seed: Any) -> Any:
    """One of the two may be a scalar, not both."""
    mixed = _compute.bit_wise_xor(_compute.add(seed, whole(_P5 + 8)), turned)
    mixed = _compute.multiply(_rotate_column(mixed, 27), whole(_P1))
    mixed = _compute.add(mixed, whole(_P4))
    for bits, factor in ((33, _P2), (29, _P3)):
        mixed = _compute.multiply(_folded(mixed, bits), whole(factor))
    return _folded(mixed, 32)


def _folded(values: Any, bits: int) -> Any:
    return _compute.bit_wise_xor(values, _compute.shift_right(values, whole(bits)))


def _rotate_column(values: Any, bits: int) -> Any:
    left = _compute.shift_left(values, whole(bits))
    return _compute.bit_wise_or(left, _compute.shift_right(values, whole(64 - bits)))
