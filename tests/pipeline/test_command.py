"""`waystation pipeline`: what people type, what they get, and how it ends."""

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from waystation.cli import pipeline, pipeline_lake
from waystation.pipeline import session
from waystation.pipeline.dag import STEPS
from waystation.pipeline.delta_table import LostRaceError
from waystation.pipeline.java import ADVICE, NoJavaError
from waystation.pipeline.jobs import ingest
from waystation.pipeline.quality import Check, QualityStopError


def call(*arguments: object, stdin: str = "") -> Result:
    return CliRunner().invoke(pipeline.app, list(map(str, arguments)), input=stdin)


def test_there_is_a_command_for_every_job() -> None:
    assert tuple(step.name for step in STEPS) == pipeline_lake.STEPS
    assert call("--help").exit_code == 0


def test_a_walk_from_segments_to_an_answer(spark: SparkSession, tmp_path: Path) -> None:
    """Options that all commands share may stand before or after the command."""
    place = ("--data-dir", tmp_path, "--profile", "test")
    made = call("generate", "--messages", 400, "--last", "2026-11-06", "--out",
                tmp_path / "events", *place)  # fmt: skip
    assert made.exit_code == 0, made.output
    taken = call(*place, "--json", "ingest")
    result = json.loads(taken.stdout.splitlines()[-1])
    assert (result["job"], result["state"]) == ("ingest", "done")
    assert call("ingest", *place).stdout == "ingest       nothing new\n"
    assert "400 out" in call("fold", *place).stdout

    asked = call("sql", "select count(*) as n from msg_inc", *place)
    assert asked.stdout == "n\n400\n"
    assert call("sql", "drop table msg", *place).exit_code == 1
    listed = call("ls", "--json", *place).stdout.splitlines()
    rows = {(row := json.loads(line))["table"]: row["rows"] for line in listed}
    assert rows["events"] == result["rows_out"]
    assert "mdate=2026-11-06" in call("show", "msg_inc", *place).stdout
    assert len(call("show", "events", "--versions", *place).stdout.splitlines()) == 3
    segment = next((tmp_path / "events" / "sim.endpoint.0").iterdir())
    assert "push.received mid=" in call("cat", segment).stdout
    dry = call("vacuum", *place)
    assert dry.exit_code == 0
    assert "--apply" in dry.stderr


def test_a_run_ends_with_the_report_and_says_where_it_is(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Even of nothing: whoever asks for the first time finds a page."""
    done = call("run", "--data-dir", tmp_path, "--profile", "test")

    page = tmp_path / "report" / "report.html"
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[-1] == f"report       {page}"
    assert "<title>" in page.read_text()


@pytest.mark.parametrize("command", ["ingest", "run"])
def test_a_missing_extra_is_named_and_nothing_is_left_behind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)

    done = call(command, "--data-dir", tmp_path)

    assert done.exit_code == 78
    assert "pip install 'waystation[pipeline]'" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "error, code",
    [
        (NoJavaError(ADVICE), 78),
        (QualityStopError([Check("privacy", "stop", 1, 0, ok=False)]), 3),
        (LostRaceError("events"), 4),
    ],
)
def test_an_error_has_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception, code: int
) -> None:
    def fail(*_args: object, **_more: object) -> None:
        raise error

    monkeypatch.setattr(session, "build", fail if code == 78 else session.build)
    monkeypatch.setattr(ingest, "drain", fail)

    done = call("ingest", "--data-dir", tmp_path, "--profile", "test")

    assert done.exit_code == code
    assert str(error) in done.stderr


@pytest.mark.parametrize(
    "command", [("ls",), ("show", "events"), ("sql", "SELECT 1"), ("fold",), ("compact",)]
)
def test_a_lake_that_does_not_exist_is_named_and_not_made(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    lake = tmp_path / "missing"

    done = call(*command, "--lake", lake)

    assert done.exit_code == 1
    assert f"there is no lake at {lake}" in done.stderr
    assert not lake.exists()


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        (("fold", "--date", "yesterday"), "2026-01-31"),
        (("fold", "--from", "2026-01-01"), "belong together"),
        (("fold", "--from", "2026-01-02", "--to", "2026-01-02"), "day after the last"),
        (("rebuild", "msg"), "--from and --to"),
        (("ingest", "--once", "--follow", "3"), "exclude each other"),
        (("ingest", "--source", "kafka"), "events.kafka_servers"),
        (("ls", "--conf", "spark.x"), "KEY=VALUE"),
    ],
)
def test_a_wrong_call_is_explained(arguments: tuple[str, ...], complaint: str) -> None:
    done = call(*arguments)

    assert done.exit_code == 2
    assert complaint in done.stderr
