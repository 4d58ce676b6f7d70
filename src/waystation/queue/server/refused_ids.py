"""Ids whose commands are refused, so that no command overtakes one that was refused before it.

An edge may send further commands before it learns that a slot is frozen. If the freeze ended
between two commands, the second would be executed before the first is sent again. So after a
refusal all later commands for the id are refused, until the edge begins again (`Sagain`).

Rule 1: a command belongs to the *term* in which it arrived; `Sagain` begins the next one. A refusal
        blocks its term and earlier ones.
Rule 2: an id is refused until the first command of a later term is done, or until another server
        owns the slot: then no command can be overtaken.
Rule 3: after `Moved`, all later commands for the id are answered the same way, even if its queue
        arrives here meanwhile. The edge sends `Sagain` when all of them have returned.
"""

from collections.abc import Collection
from typing import Final

from waystation.queue.model import RefKind, Slot
from waystation.queue.wire.link_messages import Moved
from waystation.queue.wire.transmission import Transmission

BARS_MAX: Final = 10_000


class SaidAgain(Transmission, frozen=True, gc=False):
    """A command of a later term than the first."""

    term: int = 0


class RefusedIds:
    __slots__ = ("_barred", "_moved", "_terms")

    def __init__(self) -> None:
        self._barred: dict[bytes, tuple[int, Slot]] = {}  # up to which term
        self._terms: dict[bytes, int] = {}
        self._moved: dict[bytes, Moved] = {}

    def __len__(self) -> int:
        return len(self._barred) + len(self._moved)

    # On arrival

    def again(self, entity_id: bytes) -> None:
        moved = self._moved.pop(entity_id, None)
        if moved is not None and entity_id not in self._barred:
            return
        barred, _ = self._barred.get(entity_id, (-1, None))
        self._terms[entity_id] = max(barred, self._terms.get(entity_id, 0)) + 1

    def tag(self, sent: Transmission) -> Transmission:
        """The command with its term."""
        term = self._terms.get(sent.entity_id)
        if term is None:
            return sent
        return SaidAgain(
            sent.corr_id,
            sent.entity_id,
            sent.command,
            sent.proof,
            sent.authorized,
            sent.service_proof,
            term,
        )

    # On execution

    def refuses(self, sent: Transmission) -> bool:
        barred = self._barred.get(sent.entity_id)
        return barred is not None and term_of(sent) <= barred[0]

    def bar(self, sent: Transmission, slot: Slot) -> None:
        self._barred[sent.entity_id] = (term_of(sent), slot)

    def send_on(self, sent: Transmission, moved: Moved) -> None:
        self._moved[sent.entity_id] = moved

    def sends_on(self, sent: Transmission, kind: RefKind | None) -> Moved | None:
        """The answer of earlier commands for this id."""
        moved = self._moved.get(sent.entity_id)
        if moved is None or moved.kind is not kind:
            return None
        return Moved(sent.corr_id, moved.kind, moved.home)

    def done(self, sent: Transmission) -> None:
        if self._barred.pop(sent.entity_id, None) is not None:
            self._terms.pop(sent.entity_id, None)

    def lost(self, slots: Collection[int]) -> None:
        for entity_id in [one for one, (_, slot) in self._barred.items() if slot in slots]:
            del self._barred[entity_id]
            self._terms.pop(entity_id, None)


def term_of(sent: Transmission) -> int:
    return sent.term if isinstance(sent, SaidAgain) else 0
