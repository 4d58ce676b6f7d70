"""Months of message tables: which table stands for which month, and whose month we know.

A month is a number, twelve to a year, so that months can be compared and counted; a table without
a month in its name (one that an operator renamed, §6.8) is older than all others. Calendar months
are those of UTC.
"""

import re
from collections import OrderedDict
from datetime import UTC, datetime

from waystation.push.model import Uaid

DATELESS = -1
REMEMBERED_MAX = 65_536  # user agents whose table is remembered; one more read for the others

_SUFFIX = re.compile(r"_(\d{4})_(\d{1,2})$")


def month_at(now_ms: int) -> int:
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    return now.year * 12 + now.month - 1


def month_of_name(table: str) -> int | None:
    """The month that a table's name ends in; older generations wrote it without a zero."""
    found = _SUFFIX.search(table)
    if found is None:
        return None
    year, month = int(found[1]), int(found[2])
    return year * 12 + month - 1 if 1 <= month <= 12 else None


def table_name(prefix: str, month: int) -> str:
    return f"{prefix}_{month // 12:04}_{month % 12 + 1:02}"


def month_of_table(prefix: str, table: str) -> int | None:
    """The month of a message table of ours; none if it is no message table."""
    if table == prefix:
        return DATELESS
    month = month_of_name(table)
    if month is None or not _SUFFIX.fullmatch(table, len(prefix)) or table[: len(prefix)] != prefix:
        return None
    return month


def last_connect(now_ms: int, chance: float) -> int:
    """YYYYMMHH and four digits of chance (0000 to 0010): few keys, which a purge can list."""
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    return int(f"{now:%Y%m%H}{int(chance * 11):04}")


def access_keys(month: int) -> list[int]:
    """Every `last_connect` that somebody of that month may have."""
    first = f"{month // 12:04}{month % 12 + 1:02}"
    return [int(f"{first}{hour:02}{chance:04}") for hour in range(24) for chance in range(11)]


def same_month(last_connect: int | None, now_ms: int) -> bool:
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    return last_connect is not None and str(last_connect).startswith(f"{now:%Y%m}")


class Remembered:
    """The tables of the user agents that were seen last."""

    def __init__(self, limit: int = REMEMBERED_MAX) -> None:
        self._limit = limit
        self._tables: OrderedDict[Uaid, str] = OrderedDict()

    def get(self, uaid: Uaid) -> str | None:
        return self._tables.get(uaid)

    def put(self, uaid: Uaid, table: str) -> None:
        self._tables[uaid] = table
        self._tables.move_to_end(uaid)
        if len(self._tables) > self._limit:
            self._tables.popitem(last=False)

    def drop(self, uaid: Uaid) -> None:
        self._tables.pop(uaid, None)
