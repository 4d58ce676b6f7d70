"""`waystation cluster` against a real store: make, join, look, plan, move, drain."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

from waystation.app.data_dir import DataDir, lock_roles
from waystation.cli import cluster
from waystation.cli.cluster import app
from waystation.cli.main import build_app
from waystation.queue.cluster.slot_map import Assignment, NodeId, SlotMap
from waystation.queue.identity import ensure_identity
from waystation.queue.model import slot_letters
from waystation.storage.embedded.cluster_store import EmbeddedClusterStore
from waystation.storage.embedded.queue import EmbeddedQueueStore
from waystation.storage.open import open_cluster_store
from waystation.storage.settings import Store
from waystation.testing.conformance.queue_samples import new_queue


class Members:
    """Data directories of one cluster on an embedded store."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = f"embedded:{root / 'shared'}"
        self.token = root / "token"

    def run(self, member: str, *arguments: str) -> Result:
        return CliRunner().invoke(app, [*arguments, "--data-dir", str(self.root / member)])

    def join(self, member: str, *arguments: str) -> str:
        return self.told(member, "join", "--token-file", str(self.token), *arguments)

    def told(self, member: str, *arguments: str) -> str:
        result = self.run(member, *arguments)
        assert result.exit_code == 0, result.output
        return result.output


def no_moves(folder: Path) -> Path:
    plan = folder / "empty.json"
    plan.write_text(json.dumps({"form": "waystation-plan/1", "moves": []}))
    return plan


async def changed(members: Members, change: Callable[[SlotMap], SlotMap]) -> SlotMap:
    """The map after somebody else's change."""
    store = await open_cluster_store(members.store, data_dir=members.root, settings=Store())
    try:
        before = await store.read()
        after = change(before).as_one_change(before)
        assert await store.commit(after)
        return after
    finally:
        await store.close()


@pytest.fixture
def members(tmp_path: Path) -> Members:
    made = Members(tmp_path)
    token = made.told("one", "init", "--store", made.store).split()[-1]
    made.token.write_text(token)
    made.token.chmod(0o600)
    made.join("two", "--link", "127.0.0.1:6225")
    return made


def test_a_cluster_begins_with_one_server_and_others_join_without_slots(members: Members) -> None:
    lines = members.told("two", "status").splitlines()

    assert lines[0] == "epoch 3, 2 servers"
    assert "4096" in lines[2]
    assert "127.0.0.1:6225" in lines[3]
    assert lines[4].startswith("node 1 writes the references of its queues: 0 of 4,096 slots")
    assert lines[4].endswith("it is not running")
    assert len(members.told("one", "status", "--grid").splitlines()) == 5 + 64


def test_a_newcomer_is_given_its_share(members: Members) -> None:
    """Q-130"""
    assert "node 1 → node 2: 2048" in members.told("one", "plan")
    assert "0 moves" not in members.told("one", "status")
    assert "node 1 → node 2: 2048" in members.told("two", "add")
    assert "2048 moves are planned" in members.told("one", "status")


def test_one_slot_or_a_whole_plan_is_moved(members: Members, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    moves = [{"slot": slot, "source": 1, "target": 2} for slot in (1, 2, 3)]
    plan.write_text(json.dumps({"form": "waystation-plan/1", "moves": moves}))

    assert "node 1 → node 2: 1" in members.told("one", "move", "QQ", "2")
    assert "node 1 → node 2: 4" in members.told("one", "move", "--plan", str(plan))
    assert "4 moves are planned" in members.told("one", "status")


def test_what_is_planned_stays_planned_when_more_is(members: Members) -> None:
    members.join("three", "--link", "127.0.0.1:7225")
    members.told("one", "drain", "1")
    assert "4096 moves are planned" in members.told("one", "status")

    said = members.told("one", "move", "QQ", "3")

    assert "4096 slots move" in said
    # What is under way to a server counts as its own: an equal share is planned already.
    assert "4096 slots move" in members.told("one", "add")
    members.told("one", "move", "--plan", str(no_moves(members.root)))
    assert "4096 moves are planned" in members.told("one", "status")


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        (("move", "QQ", "9"), "there is no node 9"),
        (("move", "Q?", "2"), "is no slot"),
        (("move", "QQ"), "name a slot and a server"),
        (("drain", "9"), "there is no node 9"),
        (("weight", "9", "1"), "there is no node 9"),
        (("weight", "2", "256"), "a weight is between 0 and 255"),
        (("plan", "no-such-file"), "cannot read"),
    ],
)
def test_what_makes_no_sense_is_refused_and_changes_nothing(
    members: Members, arguments: tuple[str, ...], complaint: str
) -> None:
    result = members.run("one", *arguments)

    assert result.exit_code == 2
    assert complaint in result.output
    assert "epoch 3" in members.told("one", "status")


def test_new_queues_are_steered_away_from_a_server(members: Members) -> None:
    said = members.told("one", "weight", "1", "0")

    assert said.splitlines()[1].split()[:7] == ["1", "1", "up", "4096", "0", "0", "0"]
    assert members.told("two", "status").splitlines()[2].split()[6] == "0"


def test_a_server_that_leaves_gives_everything_away(members: Members) -> None:
    assert "node 1 → node 2: 4096" in members.told("two", "drain", "1")

    assert "drain" in members.told("one", "status")


def test_a_cluster_is_made_once_and_a_member_is_in_one(members: Members) -> None:
    again = members.run("three", "init", "--store", members.store)
    assert again.exit_code == 1
    assert "already" in again.output
    twice = members.run("two", "join", "--token-file", str(members.token))
    assert twice.exit_code == 78
    assert "belongs to a member already" in twice.output
    assert "epoch 3" in members.told("one", "status")


def test_a_move_by_hand_goes_before_what_is_planned(members: Members) -> None:
    members.told("one", "add")
    members.told("one", "move", "QQ", "2")
    members.told("one", "move", "AB", "2")

    slot_map = asyncio.run(changed(members, lambda now: now))

    assert [slot_letters(move.slot) for move in slot_map.planned[:3]] == ["AB", "QQ", "AA"]
    assert len(slot_map.planned) == 2048  # both were planned already, for later


def test_nothing_is_moved_to_a_server_that_is_drained_or_down(members: Members) -> None:
    members.told("one", "drain", "2")
    drained = members.run("one", "move", "QQ", "2")

    assert drained.exit_code == 2
    assert "node 2 is drained" in drained.output
    assert "cluster undrain" in drained.output
    down = msgspec.structs.replace
    asyncio.run(changed(members, lambda m: m.with_node(down(m.nodes[NodeId(2)], status="down"))))
    assert "node 2 is down" in members.run("one", "move", "QQ", "2").output


def test_a_drained_server_is_taken_back_with_what_it_still_has(members: Members) -> None:
    members.told("one", "drain", "1")
    members.told("one", "undrain", "1")
    lines = members.told("one", "status").splitlines()

    assert "planned" not in lines[0]
    assert lines[2].split()[2:7] == ["up", "4096", "0", "0", "100"]
    again = members.run("one", "undrain", "1")
    assert again.exit_code == 2
    assert "node 1 is not drained" in again.output


def test_a_server_without_slots_is_removed_and_its_number_is_not_used_again(
    members: Members,
) -> None:
    """Its certificate is still valid: whoever had the same number would have the same name."""
    assert "drain it first" in members.run("one", "remove", "1").output
    assert "no member any more" in members.told("one", "remove", "2")
    members.join("three", "--link", "127.0.0.1:7225")

    lines = members.told("one", "status").splitlines()
    assert [line.split()[1] for line in lines[2:4]] == ["1", "3"]
    assert "there is no node 2" in members.run("one", "remove", "2").output


def test_a_link_is_corrected_by_its_server_or_by_another_member(members: Members) -> None:
    members.told("two", "set-link", "db.example.org:5225")
    members.told("two", "set-link", "[::1]:5226", "--node", "1")
    lines = members.told("one", "status").splitlines()

    assert "::1:5226" in lines[2]
    assert "db.example.org:5225" in lines[3]
    members.join("edge", "--edge")
    assert "an edge" in members.run("edge", "set-link", "h:1").output
    assert "expected HOST:PORT" in members.run("two", "set-link", "nowhere").output


def test_whose_link_leads_nowhere_is_told_with_the_way_to_correct_it(members: Members) -> None:
    """Only of servers that are alive: the others have no link to be found."""
    asyncio.run(renewed(members, NodeId(2)))
    line = members.told("one", "status").splitlines()[-1]

    assert line.startswith("node 2 is alive, and its link 127.0.0.1:6225 is not reached from here")
    assert "connection refused" in line
    assert line.endswith("waystation cluster set-link HOST:PORT --node 2")


def test_the_doctor_examines_the_links_of_a_cluster(members: Members) -> None:
    asyncio.run(renewed(members, NodeId(2)))
    examined = CliRunner().invoke(build_app(), ["doctor", "--data-dir", str(members.root / "one")])

    assert "node 2 is alive, and its link 127.0.0.1:6225 is not reached" in examined.output


async def renewed(members: Members, node_id: NodeId) -> None:
    store = await open_cluster_store(members.store, data_dir=members.root, settings=Store())
    await store.renew(node_id)
    await store.close()


def test_a_token_is_made_again_where_the_cluster_was_made(members: Members) -> None:
    again = members.root / "again"
    members.told("one", "token", "--out", str(again))

    assert again.read_text() == members.token.read_text() + "\n"
    assert again.stat().st_mode & 0o777 == 0o600
    assert members.told("one", "token").strip() == members.token.read_text()
    assert "cannot write" in members.run("one", "token", "--out", str(again)).output
    elsewhere = members.run("two", "token")
    assert elsewhere.exit_code == 78
    assert "data directory of `waystation cluster init`" in elsewhere.output


def test_edges_get_the_identity_of_the_first_server_without_its_ca_key(members: Members) -> None:
    token = members.root / "edges"
    members.told("one", "token", "--edge", "--out", str(token))
    for edge in ("edge-a", "edge-b"):
        members.told(edge, "join", "--edge", "--token-file", str(token))
    first, *edges = (
        members.root / member / "keys" / "queue" for member in ("one", "edge-a", "edge-b")
    )
    known = ensure_identity(first, host="")

    for directory in edges:
        shown = ensure_identity(directory, host="")
        assert shown.fingerprint == known.fingerprint
        assert shown.chain == known.chain
        assert not shown.made
        assert not (directory / "ca.key").exists()
        assert {file.stat().st_mode & 0o777 for file in directory.iterdir()} == {0o600}


def test_an_edge_with_an_identity_of_its_own_is_not_given_another(members: Members) -> None:
    token = members.root / "edges"
    members.told("one", "token", "--edge", "--out", str(token))
    directory = members.root / "edge" / "keys" / "queue"
    directory.parents[1].mkdir(mode=0o700)
    directory.parent.mkdir(mode=0o700)
    own = ensure_identity(directory, host="edge.example", algorithm="ed25519")
    refused = members.run("edge", "join", "--edge", "--token-file", str(token))

    assert refused.exit_code == 78
    assert "holds another identity" in refused.output
    assert ensure_identity(directory, host="").fingerprint == own.fingerprint
    assert "in no cluster" in members.run("edge", "status").output


def test_an_edge_is_told_that_it_will_have_an_address_of_its_own(members: Members) -> None:
    assert "its address is a new one" in members.join("edge", "--edge")


def test_a_token_in_the_process_list_is_refused(members: Members) -> None:
    refused = members.run("three", "join", members.token.read_text())

    assert refused.exit_code == 2
    assert "--token-file FILE" in refused.output
    assert "--token-file -" in refused.output
    assert "epoch 3" in members.told("one", "status")


def test_a_token_comes_from_a_file_or_from_the_standard_input(members: Members) -> None:
    runner, where = CliRunner(), ("--data-dir", str(members.root / "three"))
    words = ["join", "--token-file", "-", "--link", "127.0.0.1:7225", *where]
    joined = runner.invoke(app, words, input=members.token.read_text() + "\n")

    assert joined.exit_code == 0, joined.output
    assert "This is node 3" in joined.output
    members.token.chmod(0o644)
    assert "chmod 600" in members.join("four")
    missing = members.run("five", "join", "--token-file", "no-such-file")
    assert "cannot read no-such-file" in missing.output
    assert "--token-file FILE" in members.run("five", "join").output


async def with_a_queue(folder: Path) -> None:
    store = await EmbeddedQueueStore.open(folder / "store" / "queue", settings=Store())
    assert await store.create(new_queue())
    await store.close()


@pytest.mark.parametrize("words", [(), ("--edge",)])
def test_a_directory_that_holds_queues_does_not_join(
    members: Members, words: tuple[str, ...]
) -> None:
    asyncio.run(with_a_queue(members.root / "three"))
    refused = members.run("three", "join", "--token-file", str(members.token), *words)

    assert refused.exit_code == 78
    assert "holds 1 queues, which nobody would reach any more" in refused.output
    assert "epoch 3" in members.told("one", "status")
    assert not (members.root / "three" / "keys" / "cluster").exists()


def test_a_server_that_runs_does_not_join(members: Members) -> None:
    """Its clients could make queues until it is started again."""
    data = DataDir(members.root / "three")
    data.make()
    (lock,) = lock_roles(data, ("queue",))
    refused = members.run("three", "join", "--token-file", str(members.token))
    lock.release()

    assert refused.exit_code == 78
    assert "already runs the role queue" in refused.output
    assert "node 3" in members.join("three")


@pytest.mark.parametrize("command", ["init", "join"])
def test_queues_that_do_not_lie_in_the_embedded_store_are_refused(
    members: Members, tmp_path: Path, command: str
) -> None:
    config = tmp_path / "config.toml"
    config.write_text('[queue]\nstore = "postgres://db.example.org/queues"\n')
    words = {
        "init": ("--store", f"embedded:{tmp_path / 'other'}"),
        "join": ("--token-file", str(members.token)),
    }
    refused = members.run("three", command, *words[command], "--config", str(config))

    assert refused.exit_code == 78
    assert "keeps its queues in the embedded store" in refused.output


def test_waiting_ends_when_everything_has_moved(
    members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The servers and their controller are played by the test: each look finds a step done."""
    monkeypatch.setattr(cluster, "WAIT_LOOK_S", 0.0)
    read = EmbeddedClusterStore.read

    async def stepping(self: EmbeddedClusterStore) -> SlotMap:
        slot_map = await read(self)
        if slot_map.planned:
            after = slot_map.with_node(
                msgspec.structs.replace(slot_map.nodes[NodeId(1)], references_left=0)
            )
            done, left = slot_map.planned[:1024], slot_map.planned[1024:]
            slots = list(after.slots)
            for move in done:
                slots[move.slot] = Assignment(move.target)
            after = msgspec.structs.replace(after.planning(left), slots=tuple(slots))
            assert await self.commit(after.as_one_change(slot_map))
        return slot_map

    monkeypatch.setattr(EmbeddedClusterStore, "read", stepping)
    lines = members.told("one", "add", "--wait").splitlines()

    assert lines[0] == "2048 slots move:"
    assert "0 of 2,048 slots have moved; node 1 writes the references" in lines[2]
    assert lines[3:] == [f"{count:,} of 2,048 slots have moved" for count in (1024, 2048)]


def test_waiting_for_a_move_by_hand_does_not_wait_for_the_plan(
    members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "WAIT_LOOK_S", 0.0)
    members.told("one", "add")
    read = EmbeddedClusterStore.read

    async def first_done(self: EmbeddedClusterStore) -> SlotMap:
        slot_map = await read(self)
        first, *left = slot_map.planned
        if slot_letters(first.slot) == "QQ":
            slots = list(slot_map.slots)
            slots[first.slot] = Assignment(first.target)
            after = msgspec.structs.replace(slot_map.planning(left), slots=tuple(slots))
            assert await self.commit(after.as_one_change(slot_map))
        return slot_map

    monkeypatch.setattr(EmbeddedClusterStore, "read", first_done)
    lines = members.told("one", "move", "QQ", "2", "--wait").splitlines()

    assert lines[-1].startswith("1 of 1 slots have moved")
    assert "2047 moves are planned" in members.told("one", "status")


def test_waiting_says_what_did_not_move(members: Members, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "WAIT_LOOK_S", 0.0)
    read = EmbeddedClusterStore.read

    async def dropped(self: EmbeddedClusterStore) -> SlotMap:
        """A target that went down: its moves are left out."""
        slot_map = await read(self)
        if slot_map.planned:
            assert await self.commit(slot_map.planning(()))
        return slot_map

    monkeypatch.setattr(EmbeddedClusterStore, "read", dropped)
    waited = members.run("one", "move", "QQ", "2", "--wait")

    assert waited.exit_code == 1
    assert "1 slots did not move" in waited.output


def test_outside_a_cluster_the_way_in_is_told(tmp_path: Path) -> None:
    result = Members(tmp_path).run("nowhere", "status")

    assert result.exit_code == 78
    assert "waystation cluster join --token-file FILE" in result.output
