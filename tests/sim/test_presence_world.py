"""Parties under faults: order, at least once, no ghosts, no lost leave; mistakes are found.

`WAYSTATION_TEST_SEED=118 pytest tests/sim -k asked_for` runs one world again.
"""

import os
from collections.abc import Sequence
from typing import Any

import pytest

from tests.sim.presence import redis_scripts as scripts
from tests.sim.presence.world import PresenceWorld
from waystation.presence.cluster import membership
from waystation.presence.model import Status
from waystation.presence.party import party_sync as following
from waystation.presence.party.fan_out import FanOut
from waystation.presence.session import delivery, session_end
from waystation.presence.session import join as join_requests
from waystation.presence.session.session import Session
from waystation.storage.redis import presence_nodes
from waystation.testing.loop import run_sim

SEEDS = 100
CHUNK = 25
SOAK_SEEDS = 10_000
SOAK_CHUNK = 250
# Seeds that once found a mistake:
# - a position read before newer entries arrived was taken for a store that had lost data, and a
#   session that had left was written back;
# - a node that was killed and restarted before its lease had ended did not detach its sessions;
# - a detached session was written back after another node had removed it;
# - a join whose answer was lost left a session without a node;
# - a session that was resumed on its node during a reclaim was dropped;
# - a LEAVE whose answer was lost was undone;
# - timeouts were moved by too little after a pause of the process;
# - the sweep removed a party from its list while a session was being detached;
# - a lost LIST_RESYNC was not sent again;
# - a session with an unanswered LEAVE was written back after the store had lost the empty party.
KEPT = (4, 0, 28, 32, 152, 5615, 5646, 5976, 299, 40095)


def lived(seed: int, only: str = "") -> PresenceWorld:
    world = PresenceWorld(seed, only=only)
    run_sim(world.main(), world.clock)
    return world


def check_world(seed: int) -> PresenceWorld:
    world = lived(seed)
    assert not world.complaints, "\n".join([*world.complaints, *world.history[-60:]])
    return world


def found(only: str = "", *, first: int = 0, within: int = 300) -> str:
    """The complaint about a planted mistake. `only`: the kind of fault that it needs. `first`: a
    seed that found it, so that few worlds or none are run in vain."""
    for seed in range(first, first + within):
        world = lived(seed, only)
        if world.complaints:
            return world.complaints[0]
    pytest.fail(f"{within} worlds did not find it")


@pytest.mark.parametrize("seed", KEPT)
def test_kept_seeds_find_no_mistake(seed: int) -> None:
    check_world(seed)


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_simulated_parties_keep_the_protocol(first: int) -> None:
    """P-108, P-110, P-111, P-114, P-115, P-135, P-136, P-138 by virtual time"""
    for seed in range(first, first + CHUNK):
        check_world(seed)


@pytest.mark.soak
@pytest.mark.parametrize("first", range(SEEDS, SOAK_SEEDS, SOAK_CHUNK))
def test_ten_thousand_simulated_worlds_keep_the_protocol(first: int) -> None:
    for seed in range(first, min(first + SOAK_CHUNK, SOAK_SEEDS)):
        check_world(seed)


def test_the_seed_that_was_asked_for() -> None:
    check_world(int(os.environ.get("WAYSTATION_TEST_SEED", "1")))


def test_worlds_contain_all_kinds_of_events() -> None:
    worlds = [check_world(seed) for seed in range(10, 22)]
    lines = [line for world in worlds for line in world.history]

    assert sum(world.histories.entries for world in worlds) > 250
    for what in ("is killed", "is restarted", "does not reach Redis", "sleeps", "vanishes"):
        assert any(what in line for line in lines), what
    for code in (Status.OK, Status.CLIENT_TIMEOUT, Status.NODE_LOST):
        assert any(line.endswith(f"({code:d})") and " LEAVE " in line for line in lines), code


def test_the_same_seed_gives_the_same_history() -> None:
    assert lived(7).history == lived(7).history


# Planted mistakes, each found


def test_acknowledging_a_leave_before_it_is_recorded_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def leave(
        self: session_end.SessionEnd, client: Any, session: Any, message_id: int
    ) -> None:
        client.ack(message_id, self._registry.now())
        await honest(self, client, session, message_id)

    honest = session_end.SessionEnd.leave
    monkeypatch.setattr(session_end.SessionEnd, "leave", leave)

    assert found()


def test_announcing_an_entry_that_was_not_appended_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The announcement goes out, and the log does not have it."""

    def append(self: scripts.PartyRows, kind: bytes, field: bytes, **more: Any) -> Any:
        written = honest(self, kind, field, **more)
        if written[0] % 9 == 0:
            self.redis.log(self.log_key).pop(written[0])
        return written

    honest = scripts.PartyRows.append
    monkeypatch.setattr(scripts.PartyRows, "append", append)

    assert found()


def test_forgetting_the_sessions_of_a_lost_node_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def reap(self: presence_nodes.NodeRows, node_id: str) -> int:
        return 0

    monkeypatch.setattr(presence_nodes.NodeRows, "reap", reap)

    assert "ghost" in found("kill")


def test_forgetting_the_sessions_of_an_earlier_life_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def part(self: presence_nodes.NodeRows) -> int:
        return 0

    monkeypatch.setattr(presence_nodes.NodeRows, "detach_earlier_incarnations", part)

    assert "ghost" in found("kill")


def test_forgetting_the_sweep_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def expire_due(self: presence_nodes.NodeRows, limit: int) -> int:
        return 0

    monkeypatch.setattr(presence_nodes.NodeRows, "expire_due", expire_due)

    assert "ghost" in found()


def test_renewing_a_lease_without_asking_for_the_sessions_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def reclaim(self: presence_nodes.NodeRows, sessions: Sequence[Any]) -> list[Any]:
        return []

    monkeypatch.setattr(presence_nodes.NodeRows, "reclaim", reclaim)

    assert found("sleep", first=100)


def test_not_stopping_without_a_lease_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody who is there is told to be lost, by a node that does not know better."""
    monkeypatch.setattr(membership.Membership, "fenced", lambda _self: False)

    assert found("hide")


def test_writing_with_an_old_fence_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripts.PartyRows, "fits", lambda _self, _record, _fence, _holder: True)

    assert found("sleep")


def test_never_sending_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery.Delivery, "retry", lambda _self, _now: None)

    assert found()


def test_acks_that_do_not_prolong_a_session_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def acked(self: delivery.Delivery, ids: Any, upto: int, now: Any) -> bool:
        before = self.unacked_since
        applied = honest(self, ids, upto, now)
        if applied:
            since[self] = since.get(self) or before
        return applied

    def overdue(self: Session, mono: float) -> Status | None:
        self.delivery.unacked_since = since.get(self.delivery) or self.delivery.unacked_since
        return honest_end(self, mono)

    since: dict[Any, Any] = {}
    honest, honest_end = delivery.Delivery.acked, Session.overdue
    monkeypatch.setattr(delivery.Delivery, "acked", acked)
    monkeypatch.setattr(Session, "overdue", overdue)

    assert "ACK_TIMEOUT" in found()


def test_a_resume_that_skips_a_message_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def resume(self: delivery.Delivery, now: Any, *, resync: bool) -> int:
        if self.behind_at is not None and self.behind_at < self.party.seq:
            self.behind_at += 1
        return honest(self, now, resync=resync)

    honest = delivery.Delivery.resume
    monkeypatch.setattr(delivery.Delivery, "resume", resume)

    assert "never heard" in found()


def test_a_takeover_that_forgets_what_was_missed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody left while the session had no stream, and its new node does not tell."""

    def answer(
        self: join_requests.JoinRequests, client: Any, session: Any, *args: Any, **more: Any
    ):
        session.delivery.behind_at = session.party.seq
        honest(self, client, session, *args, **more)

    honest = join_requests.JoinRequests._answer
    monkeypatch.setattr(join_requests.JoinRequests, "_answer", answer)

    assert "never heard" in found()


def test_omitting_the_resync_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def list_when_caught_up(self: delivery.Delivery, status: Status, now: Any) -> None:
        if status is not Status.LIST_RESYNC:
            honest(self, status, now)

    honest = delivery.Delivery.list_when_caught_up
    monkeypatch.setattr(delivery.Delivery, "list_when_caught_up", list_when_caught_up)

    assert "view" in found("sleep")


def test_not_filling_gaps_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fill(self: following.PartySync, party: Any) -> None:
        return

    monkeypatch.setattr(following.PartySync, "fill", fill)

    assert found()


def test_writing_missing_sessions_back_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first mistake that the world found: see `KEPT`."""

    async def compare(self: membership.Membership) -> None:
        followed = [one for one in self._registry.parties.values() if one.loaded and one.sessions]
        positions = await self._store.positions([one.party_id for one in followed])
        for party, position in zip(followed, positions, strict=True):
            if position is None or position[1] != party.seq:
                await self._put_back(party)

    def reset(party: scripts.PartyRows, args: Sequence[bytes]) -> Any:
        return scripts.reset(party, [b"", *args[1:]])

    monkeypatch.setattr(membership.Membership, "compare", compare)
    monkeypatch.setitem(
        scripts.SCRIPTS,
        "party_reset",
        lambda redis, keys, args: reset(scripts.PartyRows(redis, keys), args),
    )

    assert found()


def test_forgetting_a_join_whose_answer_was_lost_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_end.SessionEnd, "verify_later", lambda _self, _key, _hash: None)

    assert found("hiccup")


def test_an_announcement_that_skips_a_recipient_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def send(self: FanOut, recipients: Any, one: Any, mono: Any) -> None:
        if one.seq % 7 == 0 and len(recipients) > 1:
            recipients = dict(list(recipients.items())[:-1])
        honest(self, recipients, one, mono)

    honest = FanOut.send
    monkeypatch.setattr(FanOut, "send", send)

    assert "is missing before" in found()


def test_acks_that_acknowledge_more_than_their_ids_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was on its way when the stream was cut is then never sent again."""

    def acked(self: delivery.Delivery, ids: tuple[int, ...], upto: int, now: Any) -> bool:
        more = [one for one in self.inflight if one not in ids][:1] if ids else []
        return honest(self, (*ids, *more), upto, now)

    honest = delivery.Delivery.acked
    monkeypatch.setattr(delivery.Delivery, "acked", acked)

    assert "never heard" in found("cut")
