"""Keeps the parties of a node in step with the store: loads them, fills gaps, reloads them.

A subscription may lose entries, and the answer of the store may arrive before the entries that it
names. Steps that need a position call `caught_up`. A party that was reset in the store, or is ahead
by more than its log, is loaded again, and its sessions on this node get a LIST_RESYNC.
"""

from collections.abc import Callable, Sequence
from typing import Final

from waystation.presence.errors import STORE_TROUBLE
from waystation.presence.model import Entry, Member, Now, PartyId
from waystation.presence.reports import Reports
from waystation.presence.session.session import State
from waystation.presence.store import PartySnapshot, PresenceStore

from .party import Party, Place
from .registry import Registry

PORTION: Final = 1000  # entries of one read


def _keep(_party: Party) -> None:
    """The default `release`."""


class PartySync:
    def __init__(
        self,
        registry: Registry,
        store: PresenceStore,
        reports: Reports,
        apply: Callable[[Party, Entry], Place | None],
    ) -> None:
        self._registry = registry
        self._store = store
        self._reports = reports
        self._apply = apply
        self.release: Callable[[Party], None] = _keep

    async def caught_up(
        self,
        party: Party,
        *,
        seq: int,
        epoch: int,
        members: Sequence[Member] | None,
        entries: Sequence[Entry],
    ) -> None:
        """Returns when the party is loaded and has reached `seq`."""
        if not party.loaded or (party.epoch != epoch and members is not None):
            assert members is not None, "the members were not asked for"
            self.load(party, seq=seq, epoch=epoch, members=members)
        for entry in entries:
            self._apply(party, entry)
        if party.seq < seq or party.epoch != epoch:
            await self.fill(party)

    def load(self, party: Party, *, seq: int, epoch: int, members: Sequence[Member]) -> None:
        anew = party.loaded
        party.load(seq=seq, epoch=epoch, members=members)
        if anew:
            self.resync_all(party, self._registry.now())
        for entry in party.held():
            self._apply(party, entry)

    async def fill(self, party: Party) -> None:
        """Reads the missing entries from the store."""
        if party.catching_up and not party.busy:
            return
        party.catching_up = True
        try:
            while True:
                entries = await self._store.read_log(
                    party.party_id, after_seq=party.seq, limit=PORTION
                )
                if entries is None:
                    await self._start_over(party)
                    return
                fresh = [entry for entry in entries if entry.seq > party.seq]
                self._reports.gap(len(fresh))
                for entry in fresh:
                    self._apply(party, entry)
                if len(entries) < PORTION:
                    return
        finally:
            party.catching_up = False

    async def preload(self, party_id: PartyId) -> None:
        """Loads a party for a session that will arrive with a ticket; kept while that is valid."""
        registry = self._registry
        if party_id in registry.parties:
            return
        party = registry.follow(party_id)
        registry.arm(
            registry.now().mono + registry.settings.ticket_s, lambda _now: self._let_go(party)
        )
        try:
            await self._store.subscribe(party_id)
            snapshot = None if party.loaded else await self._store.snapshot(party_id)
            if snapshot is not None and not party.loaded:  # not loaded in the meantime
                self._load_snapshot(party, snapshot)
        except STORE_TROUBLE as exc:
            self._reports.store_trouble("preload", exc)

    def _let_go(self, party: Party) -> None:
        party.busy -= 1
        self.release(party)

    async def reach_back(self, party: Party, cursor: int) -> None:
        """Reads older entries that a session missed, if the store still has them."""
        wanted = min(party.log.first_seq - 1 - cursor, self._registry.settings.max_lag)
        if wanted > 0:
            older = await self._store.read_log(party.party_id, after_seq=cursor, limit=wanted)
            party.reach_back(older or ())

    async def _start_over(self, party: Party) -> None:
        snapshot = await self._store.snapshot(party.party_id)
        if snapshot is not None:
            self._load_snapshot(party, snapshot)

    def _load_snapshot(self, party: Party, snapshot: PartySnapshot) -> None:
        members = [
            Member(record.key.client_id, record.key.session_id, not record.active)
            for record in snapshot.sessions
        ]
        self.load(party, seq=snapshot.seq, epoch=snapshot.epoch, members=members)

    def resync_all(self, party: Party, now: Now) -> None:
        """Sends each session of this node one LIST_RESYNC instead of its unsent messages."""
        for session in list(party.sessions.values()):
            if session.state is State.ACTIVE:
                self._reports.resync("reset")
                delivery = session.delivery
                delivery.acked_high = 0
                delivery.start_over(now)
            else:
                session.delivery.behind_at = -1  # its position belongs to another epoch
