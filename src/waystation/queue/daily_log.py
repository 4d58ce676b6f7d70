"""The daily log: one row a day in the 96 columns of SMP servers, kept across restarts.

Rule 1: a row holds the counts since the last row. They survive a restart: the counts since the last
        row, and the sets behind the active queues, are saved as lines of `key=value`.
Rule 2: columns that this server does not count are 0. New columns are only added at the end.
Rule 3: `our own` relays are counted among all relays and also apart.
"""

import datetime as dt
from typing import Final

from waystation.queue.statistics import SERVED, SERVICES, Outcome, Statistics, outcome_name
from waystation.queue.store import Counts

DAY: Final = dt.timedelta(days=1)
_OUTCOMES: Final = (Outcome.CONNECT, Outcome.COMPAT, Outcome.OTHER)
_ACTIVE: Final = "active"
_ACTIVE_NOTIFIED: Final = "activeNtf"


class DailyLog:
    def __init__(self, statistics: Statistics, began_on: dt.date) -> None:
        self._statistics = statistics
        self._began_on = began_on
        self._before = {name: int(cell.value) for name, cell in statistics.cells.items()}

    # Rows

    def row(self, written_on: dt.date, stored: Counts, *, notifications: int) -> str:
        """The row for everything since the last one; counting begins anew."""
        columns = self._columns(written_on, stored, notifications)
        self._began_on = written_on
        self._before = {name: int(cell.value) for name, cell in self._statistics.cells.items()}
        return ",".join(columns)

    def since(self, name: str) -> int:
        """The count since the last row."""
        return int(self._statistics.cells[name].value) - self._before[name]

    def _columns(self, written_on: dt.date, stored: Counts, notifications: int) -> list[str]:
        active = self._statistics.active.read(written_on)
        notified = self._statistics.active_notified.read(written_on)
        return [
            self._began_on.isoformat(),  # 1
            *self._named("qCreated qSecured qDeletedAll msgSent msgRecv"),
            *active,  # 7
            *self._named("msgSentNtf msgRecvNtf"),
            *notified,  # 12
            str(stored.queues),
            str(stored.messages),
            *self._named("msgExpired qDeletedNew qDeletedSecured"),
            *self._outcomes("pRelays"),  # 20
            *self._outcomes("pMsgFwds"),  # 30
            *self._named("pMsgFwdsRecv qSub qSubAuth qSubDuplicate qSubProhibited"),  # 40
            *self._named("msgSentAuth msgSentQuota msgSentLarge msgNtfs msgNtfNoSub msgNtfLost"),
            "0",  # 51
            *self._named("msgRecvGet msgGet msgGetNoMsg"),
            *self._named("msgGetAuth msgGetDuplicate msgGetProhibited"),
            *["0"] * 3,  # 58
            str(stored.queues),
            *self._named("ntfCreated ntfDeleted ntfSub ntfSubAuth ntfSubDuplicate"),
            str(stored.notifiers),  # 67
            *self._named("qDeletedAllB qSubAllB qSubEnd qSubEndB"),
            *self._named("ntfDeletedB ntfSubB msgNtfsB msgNtfExpired"),
            str(notifications),  # 76
            *map(str, (stored.recipient_services, stored.notifier_services)),  # 77
            *map(str, (stored.service_queues, stored.service_notifiers)),
            *self._named(
                " ".join(f"{name}_{event}" for name in SERVICES.values() for event in SERVED)
            ),
        ]

    def _named(self, names: str) -> list[str]:
        return [str(self.since(name)) for name in names.split()]

    def _outcomes(self, start: str) -> list[str]:
        """Requests, successes and three kinds of failures: of all servers, then of our own."""
        columns: list[str] = []
        for kinds in ((False, True), (True,)):
            counts = {
                outcome: sum(self.since(outcome_name(start, outcome, own=own)) for own in kinds)
                for outcome in Outcome
            }
            requests, successes = sum(counts.values()), counts[Outcome.SUCCESS]
            numbers = [requests, successes, *(counts[outcome] for outcome in _OUTCOMES)]
            columns += map(str, numbers)
        return columns

    # Across restarts

    def dump(self) -> str:
        lines = [f"fromTime={self._began_on.isoformat()}"]
        lines += [f"{name}={self.since(name)}" for name in self._statistics.cells]
        lines += self._statistics.active.dump(_ACTIVE)
        lines += self._statistics.active_notified.dump(_ACTIVE_NOTIFIED)
        return "\n".join(lines) + "\n"

    def load(self, text: str) -> list[str]:
        """Continues from `dump`; returns the keys that were not understood."""
        odd: list[str] = []
        for line in text.splitlines():
            key, _, value = line.partition("=")
            try:
                self._load_line(key, value)
            except (ValueError, KeyError):
                odd.append(key)
        return odd

    def _load_line(self, key: str, value: str) -> None:
        if key == "fromTime":
            self._began_on = dt.date.fromisoformat(value)
        elif key.startswith(_ACTIVE_NOTIFIED):
            self._statistics.active_notified.load(key.removeprefix(_ACTIVE_NOTIFIED), value)
        elif key.startswith(_ACTIVE):
            self._statistics.active.load(key.removeprefix(_ACTIVE), value)
        else:
            self._before[key] -= int(value)  # KeyError: a count that no longer exists

    @property
    def began_on(self) -> dt.date:
        return self._began_on
