"""The console's view: rates, sizes, reports."""

from pathlib import Path

import msgspec

from waystation.app.data_dir import DataDir
from waystation.console.model import WorkerStatus
from waystation.ops.process_status import STATUS_SUFFIX, event_node
from waystation.ops.status import (
    SERVE,
    Rates,
    bytes_on_disk,
    read_reports,
    without_password,
)


def test_rates_need_two_looks() -> None:
    rates = Rates()

    assert rates.look({"received": 10}, 0.0) == {}
    assert rates.look({"received": 30}, 4.0) == {"received": 5.0}


def test_looks_close_together_keep_the_rates() -> None:
    rates = Rates()
    rates.look({"received": 0}, 0.0)
    rates.look({"received": 10}, 1.0)

    assert rates.look({"received": 1_000}, 1.1) == {"received": 10.0}


def test_a_worker_that_restarted_makes_no_negative_rate() -> None:
    rates = Rates()
    rates.look({"received": 100}, 0.0)

    assert rates.look({"received": 1}, 2.0) == {"received": 0.0}


def test_a_sparse_file_takes_what_it_uses(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 30)

    assert bytes_on_disk(tmp_path) < 1 << 20
    assert bytes_on_disk(tmp_path / "missing") == 0


def test_reports_that_cannot_be_read_are_passed_over(tmp_path: Path) -> None:
    data = DataDir(tmp_path)
    reports = data.numbers(SERVE, "push")
    reports.mkdir(parents=True)
    worker = WorkerStatus(
        name="push.0", roles=("connect",), pid=1, started_at_ms=1, reported_at_ms=2
    )
    (reports / f"push.0{STATUS_SUFFIX}").write_bytes(msgspec.json.encode(worker))
    (reports / f"push.1{STATUS_SUFFIX}").write_bytes(b"{")

    assert read_reports(data) == [worker]


def test_a_stores_password_is_not_shown() -> None:
    assert without_password("redis://me:secret@host:1/0") == "redis://…@host:1/0"
    assert without_password("embedded:./store") == "embedded:./store"


def test_an_event_names_its_process_as_the_contract_wants() -> None:
    assert event_node("Box_7.example", "push.3") == "box-7.example.push.3"
    assert event_node("a" * 90, "push.0") == "a" * 40 + ".push.0"
