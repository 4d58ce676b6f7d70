"""Counts the distinct queues used in a day, a week and a month, in bounded memory.

Rule 1: up to `EXACT_MAX` ids are counted exactly, by eight bytes of a hash of each. Above that a
        HyperLogLog sketch counts them (4096 bytes, mean error 1.6 %).
Rule 2: the count of a day starts again with each row of the statistics, that of a week with a row
        written on a Monday, that of a month with a row written on the first.
"""

import datetime as dt
import hashlib
import math
from collections.abc import Iterable
from typing import Final

EXACT_MAX: Final = 5_000
_BITS: Final = 12
_REGISTERS: Final = 1 << _BITS
_REST_BITS: Final = 64 - _BITS
_ALPHA: Final = 0.7213 / (1 + 1.079 / _REGISTERS)


def fold(recipient_id: bytes) -> int:
    """A 64-bit hash that represents a queue in these counts."""
    return int.from_bytes(hashlib.blake2b(recipient_id, digest_size=8).digest(), "big")


class Distinct:
    """Counts the different numbers that were added."""

    __slots__ = ("_exact", "_registers")

    def __init__(self) -> None:
        self._exact: set[int] | None = set()
        self._registers = b""

    def add(self, number: int) -> None:
        if self._exact is None:
            self._note(number)
            return
        self._exact.add(number)
        if len(self._exact) > EXACT_MAX:
            seen, self._exact = self._exact, None
            self._registers = bytearray(_REGISTERS)
            for one in seen:
                self._note(one)

    def _note(self, number: int) -> None:
        registers = self._registers
        assert isinstance(registers, bytearray)
        place = number >> _REST_BITS
        rest = number & ((1 << _REST_BITS) - 1)
        rank = _REST_BITS - rest.bit_length() + 1
        registers[place] = max(registers[place], rank)

    def count(self) -> int:
        if self._exact is not None:
            return len(self._exact)
        estimate = _ALPHA * _REGISTERS**2 / sum(2.0**-rank for rank in self._registers)
        empty = self._registers.count(0)
        if empty and estimate <= 2.5 * _REGISTERS:
            estimate = _REGISTERS * math.log(_REGISTERS / empty)
        return round(estimate)

    def clear(self) -> None:
        self._exact = set()
        self._registers = b""

    # As text, to survive a restart

    def dump(self) -> str:
        if self._exact is None:
            return "~" + bytes(self._registers).hex()
        return ",".join(f"{number:x}" for number in sorted(self._exact))

    def load(self, text: str) -> None:
        """Raises `ValueError` for text that `dump` did not write; nothing is changed then."""
        if text.startswith("~"):
            registers = bytes.fromhex(text[1:])
            if len(registers) != _REGISTERS:
                raise ValueError("not a sketch")
            self._exact, self._registers = None, bytearray(registers)
            return
        numbers = [int(part, 16) & (1 << 64) - 1 for part in text.split(",") if part]
        self.clear()
        for number in numbers:
            self.add(number)


class ActiveQueues:
    """The three counts that a row of the statistics has."""

    __slots__ = ("_periods",)

    def __init__(self) -> None:
        self._periods = {"Day": Distinct(), "Week": Distinct(), "Month": Distinct()}

    def add(self, number: int) -> None:
        for period in self._periods.values():
            period.add(number)

    def read(self, written_on: dt.date) -> list[str]:
        """Day, week and month as columns of a row: empty while the period goes on (rule 2)."""
        over = {
            "Day": True,
            "Week": written_on.isoweekday() == 1,
            "Month": written_on.day == 1,
        }
        columns: list[str] = []
        for name, period in self._periods.items():
            columns.append(str(period.count()) if over[name] else "")
            if over[name]:
                period.clear()
        return columns

    def dump(self, name: str) -> Iterable[str]:
        return (f"{name}{period}={one.dump()}" for period, one in self._periods.items())

    def load(self, period: str, text: str) -> None:
        """Raises `ValueError` or `KeyError` for text that `dump` did not write."""
        self._periods[period].load(text)
