"""`waystation cluster` against a real store: make, join, look, plan, move, drain."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from waystation.cli.cluster import app


class Members:
    """Data directories of one cluster on an embedded store."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = f"embedded:{root / 'shared'}"

    def run(self, member: str, *arguments: str) -> Result:
        return CliRunner().invoke(app, [*arguments, "--data-dir", str(self.root / member)])

    def told(self, member: str, *arguments: str) -> str:
        result = self.run(member, *arguments)
        assert result.exit_code == 0, result.output
        return result.output


@pytest.fixture
def members(tmp_path: Path) -> Members:
    made = Members(tmp_path)
    token = made.told("one", "init", "--store", made.store).split()[-1]
    made.told("two", "join", token, "--link", "127.0.0.1:6225")
    (tmp_path / "token").write_text(token)
    return made


def test_a_cluster_begins_with_one_server_and_others_join_without_slots(members: Members) -> None:
    lines = members.told("two", "status").splitlines()

    assert lines[0] == "epoch 3, 2 servers"
    assert "4096" in lines[2]
    assert "127.0.0.1:6225" in lines[3]
    assert len(members.told("one", "status", "--grid").splitlines()) == 4 + 64


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


def test_what_is_planned_stays_planned_when_more_is(members: Members, tmp_path: Path) -> None:
    token = (tmp_path / "token").read_text()
    members.told("three", "join", token, "--link", "127.0.0.1:7225")
    members.told("one", "drain", "1")
    assert "4096 moves are planned" in members.told("one", "status")

    said = members.told("one", "move", "QQ", "3")

    assert "4096 slots move" in said
    # What is under way to a server counts as its own: an equal share is planned already.
    assert "4096 slots move" in members.told("one", "add")
    members.told("one", "move", "QQ", "1")
    assert "4095 moves are planned" in members.told("one", "status")


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


def test_a_cluster_is_made_once_and_a_member_is_in_one(members: Members, tmp_path: Path) -> None:
    token = (tmp_path / "token").read_text()

    again = members.run("three", "init", "--store", members.store)
    assert again.exit_code == 1
    assert "already" in again.output
    twice = members.run("two", "join", token)
    assert twice.exit_code == 78
    assert "belongs to a member already" in twice.output
    assert "epoch 3" in members.told("one", "status")


def test_outside_a_cluster_the_way_in_is_told(tmp_path: Path) -> None:
    result = Members(tmp_path).run("nowhere", "status")

    assert result.exit_code == 78
    assert "waystation cluster join TOKEN" in result.output
