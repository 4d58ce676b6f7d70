"""Registry: connections of this worker by uaid.

Rule 1: a connection is added before its claim on the uaid is written, so that no endpoint node
        finds the user agent absent while it connects.
Rule 2: an older connection of the uaid is set aside until the new one is greeted, and then closed.
        If the new one loses its claim, the older one takes its place again.
Rule 3: `remove` deletes an entry only if it still belongs to that connection. If a later connection
        was added meanwhile, it inherits the connection that this one had set aside.
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
        self.get = self._members.get  # the dictionary's method directly: every message calls it
        self._aside: dict[M, M] = {}  # new connection -> the older one of its uaid

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[M]:
        return iter(list(self._members.values()))

    def add(self, uaid: Uaid, member: M) -> None:
        before = self._members.get(uaid)
        if before is not None and before is not member:
            self._aside[member] = before
        self._members[uaid] = member

    def greeted(self, member: M) -> M | None:
        """Returns the older connection, which the caller closes."""
        return self._aside.pop(member, None)

    def remove(self, uaid: Uaid, member: M) -> bool:
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
