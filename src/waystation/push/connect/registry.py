"""Who is connected to this worker, by uaid.

Rule 1: a connection is entered before its claim on the uaid is written, so that no endpoint
        finds the user agent absent while it is arriving.
Rule 2: whoever was there stays aside until the newcomer is greeted; then it is closed. If
        the newcomer loses its claim, the older one is found again.
Rule 3: leaving removes an entry only if it is still that connection's. Who leaves while a
        later one is arriving gives that one whom it had kept aside itself.
"""

from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from waystation.push.model import Uaid


class Member(Protocol):
    @property
    def alive(self) -> bool: ...


M = TypeVar("M", bound=Member)


class Registry(Generic[M]):
    def __init__(self) -> None:
        self._members: dict[Uaid, M] = {}
        self.get = self._members.get  # the dictionary's own: every message asks
        self._aside: dict[M, M] = {}  # who arrives -> who was there

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[M]:
        return iter(list(self._members.values()))

    def enter(self, uaid: Uaid, member: M) -> None:
        before = self._members.get(uaid)
        if before is not None and before is not member:
            self._aside[member] = before
        self._members[uaid] = member

    def greeted(self, member: M) -> M | None:
        """The older connection, which is to be closed."""
        return self._aside.pop(member, None)

    def leave(self, uaid: Uaid, member: M) -> bool:
        before = self._aside.pop(member, None)
        later = self._members.get(uaid)
        if later is not member:
            while later is not None and (aside := self._aside.get(later)) is not None:
                if aside is member and before is not None:
                    self._aside[later] = before
                    break
                later = aside
            return False
        if before is not None and before.alive:
            self._members[uaid] = before
        else:
            del self._members[uaid]
        return True
