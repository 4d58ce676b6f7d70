"""`waystation party join`: what it shows, what it asks, and how it refuses."""

import json

import pytest

from waystation.cli.party_display import Json, Lines, Live, sentence
from waystation.cli.party_ids import party_number
from waystation.client.party import model
from waystation.presence.wire import party_presence_pb2 as pb

ADA, GRACE = model.Participant(1, 11), model.Participant(2**63, 22)


@pytest.mark.parametrize(
    "event, text",
    [
        (model.Snapshot((), 1), "joined; nobody else here"),
        (model.Snapshot((ADA,), 1), "joined; 1 other here"),
        (model.Resynced((ADA, GRACE), 4), "caught up; 2 others here"),
        (model.Joined(ADA, 1, 0, 2), "client 1 has joined"),
        (model.Joined(ADA, 3, 0, 2), "client 1 has joined (3 sessions now)"),
        (model.Left(ADA, 0, 0, 0, 3), "client 1 has left"),
        (model.Left(ADA, pb.CLIENT_TIMEOUT, 1, 0, 3), "client 1 has left (client timeout), 1 sess"),
        (model.Reachability(ADA, False), "client 1 has lost its connection"),
        (model.Reachability(ADA, True), "client 1 is back"),
        (model.Signalled(ADA, b"hi", 0, 1), "client 1 signals b'hi'"),
        (model.ContinuityLost(), "away for too long"),
        (model.StateChanged(model.State.PAIRED), "paired"),
        (model.TokenRefused(), "the broker refused the new token"),
    ],
)
def test_every_event_has_a_sentence(event: model.Event, text: str) -> None:
    assert sentence(event).startswith(text)


def test_lines_and_json_say_who_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    with Lines("party lobby") as lines:
        lines.show(model.Joined(ADA, 1, 5, 2), (ADA,))
    with Json() as shown:
        shown.show(model.Joined(GRACE, 1, 5, 2), (ADA, GRACE))
    out = capsys.readouterr().out.splitlines()

    assert out[:3] == ["party lobby", "client 1 has joined", "left"]
    line = json.loads(out[3])
    assert line["event"] == "joined"
    assert line["who"] == {"client_id": str(2**63), "session_id": "22"}
    assert line["present"] == [["1", "11"], [str(2**63), "22"]]


def test_the_live_table_shows_participants_and_who_lost_the_connection(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Live("party lobby") as live:
        live.show(model.Snapshot((ADA, GRACE), 1), (ADA, GRACE))
        live.show(model.Reachability(ADA, False), (ADA, GRACE))
    out = capsys.readouterr().out

    assert "party lobby" in out
    assert str(2**63) in out
    assert "connection lost" in out
    assert "joined; 2 others here" in out


def test_a_name_stands_for_a_number() -> None:
    assert party_number("0x10", "PARTY") == 16
    assert party_number("lobby", "PARTY") == party_number("lobby", "PARTY") > 2**32
    assert party_number("lobby", "PARTY") != party_number("Lobby", "PARTY")


@pytest.mark.parametrize("text", ["0", "-1", str(2**64), " "])
def test_an_id_that_cannot_be_is_a_usage_error(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        party_number(text, "PARTY")

    assert ended.value.code == 2
    assert "PARTY" in capsys.readouterr().err
