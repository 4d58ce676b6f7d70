"""How a node keeps up with its parties: it loads them, fills gaps, and starts over when it must.

A subscription may lose something, and the answer of the store may come before what it tells of. So
whoever needs a position asks `caught_up`; and a party that was reset, or has gone on further than
its log reaches, is loaded anew and everybody here gets a LIST_RESYNC.
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

PORTION: Final = 1000  # entries read in one go


def _keep(_party: Party) -> None:
    """Until somebody knows how to forget a party."""


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
        """When it returns, the party is loaded and has reached `seq`."""
        if not party.loaded or (party.epoch != epoch and members is not None):
            assert members is not None, "whoever does not follow a party asks for its members"
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
        """Read what is missing."""
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
        """For somebody who is about to come with a ticket: held for as long as that works."""
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
            if snapshot is not None and not party.loaded:  # nobody has been quicker
                self._load_snapshot(party, snapshot)
        except STORE_TROUBLE as exc:
            self._reports.store_trouble("preload", exc)

    def _let_go(self, party: Party) -> None:
        party.busy -= 1
        self.release(party)

    async def reach_back(self, party: Party, cursor: int) -> None:
        """Get what somebody missed who was elsewhere; nothing if the store has forgotten it."""
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
        """Everybody of ours gets one LIST_RESYNC instead of what they have not had."""
        for session in list(party.sessions.values()):
            if session.state is State.ACTIVE:
                self._reports.resync("reset")
                delivery = session.delivery
                delivery.acked_high = 0
                delivery.start_over(now)
            else:
                session.delivery.behind_at = -1  # whatever it had was of another life of the party
