from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from waystation.telemetry.catalogue import counter, gauge, histogram
from waystation.telemetry.exposition import expose, render
from waystation.telemetry.metrics import Metrics, Snapshot
from waystation.telemetry.snapshots import fold, set_aside, write_snapshot

SPECS = (
    counter("hello", "Hellos.", "kind"),
    gauge("open", "Open ones."),
    histogram("took_seconds", "How long.", buckets=(0.1, 1.0)),
)
NOW_MS = 1_700_000_000_000


def snapshot(worker: str, hellos: int, open_: int = 0, now_ms: int = NOW_MS) -> Snapshot:
    metrics = Metrics(SPECS)
    metrics.counter("hello", kind="new").value += hellos
    metrics.gauge("open").value = open_
    metrics.histogram("took_seconds").observe(0.05)
    metrics.histogram("took_seconds").observe(0.5)
    return metrics.snapshot(worker, now_ms)


def samples(exposition: bytes) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *(f"{key}={value}" for key, value in sorted(sample.labels.items()))): (
            sample.value
        )
        for family in text_string_to_metric_families(exposition.decode())
        for sample in family.samples
    }


def test_workers_are_added_up_and_gauges_bear_their_worker() -> None:
    found = samples(expose([snapshot("push.0", 3, 10), snapshot("push.1", 4, 20)]))

    assert found == {
        ("waystation_hello_total", "kind=new"): 7,
        ("waystation_open", "worker=push.0"): 10,
        ("waystation_open", "worker=push.1"): 20,
        ("waystation_took_seconds_bucket", "le=0.1"): 2,
        ("waystation_took_seconds_bucket", "le=1.0"): 4,
        ("waystation_took_seconds_bucket", "le=+Inf"): 4,
        ("waystation_took_seconds_count",): 4,
        ("waystation_took_seconds_sum",): 1.1,
    }


def test_the_files_of_all_workers_give_one_exposition(tmp_path: Path) -> None:
    write_snapshot(tmp_path, snapshot("push.0", 1))
    write_snapshot(tmp_path, snapshot("push.0", 3))
    write_snapshot(tmp_path, snapshot("push.1", 4))
    (tmp_path / "broken.json").write_text('{"worker":')

    assert samples(render(tmp_path, NOW_MS))["waystation_hello_total", "kind=new"] == 7
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "broken.json",
        "push.0.json",
        "push.1.json",
    ]


def test_gauges_of_a_silent_worker_disappear_and_its_counters_stay(tmp_path: Path) -> None:
    write_snapshot(tmp_path, snapshot("push.0", 3, 10))
    write_snapshot(tmp_path, snapshot("push.1", 4, 20, NOW_MS - 60_000))

    found = samples(render(tmp_path, NOW_MS))

    assert found["waystation_hello_total", "kind=new"] == 7
    assert ("waystation_open", "worker=push.0") in found
    assert ("waystation_open", "worker=push.1") not in found


def test_counters_do_not_go_back_when_a_worker_is_replaced(tmp_path: Path) -> None:
    write_snapshot(tmp_path, snapshot("push.0", 100, 5))
    write_snapshot(tmp_path, snapshot("push.1", 1))
    set_aside(tmp_path, "push.0")
    for _ in range(2):
        fold(tmp_path)
    write_snapshot(tmp_path, snapshot("push.0", 2, 6))

    found = samples(render(tmp_path, NOW_MS))

    assert found["waystation_hello_total", "kind=new"] == 103
    assert found["waystation_open", "worker=push.0"] == 6
    assert found["waystation_took_seconds_count",] == 6


def test_what_was_set_aside_counts_also_while_it_cannot_be_folded(tmp_path: Path) -> None:
    """On a full disk: the successor's file must not take the place of what was counted."""
    write_snapshot(tmp_path, snapshot("push.0", 100, 5, NOW_MS - 60_000))
    set_aside(tmp_path, "push.0")
    write_snapshot(tmp_path, snapshot("push.0", 2, 6))
    before = samples(render(tmp_path, NOW_MS))
    fold(tmp_path)

    assert before["waystation_hello_total", "kind=new"] == 102
    assert before["waystation_open", "worker=push.0"] == 6
    assert samples(render(tmp_path, NOW_MS)) == before


def test_a_supervisor_that_dies_while_folding_adds_nothing_twice(tmp_path: Path) -> None:
    write_snapshot(tmp_path, snapshot("push.0", 100))
    set_aside(tmp_path, "push.0")
    [aside] = tmp_path.iterdir()
    left_over = aside.read_bytes()
    fold(tmp_path)
    aside.write_bytes(left_over)

    assert samples(render(tmp_path, NOW_MS))["waystation_hello_total", "kind=new"] == 100
    fold(tmp_path)
    assert samples(render(tmp_path, NOW_MS))["waystation_hello_total", "kind=new"] == 100
    assert [path.name for path in tmp_path.iterdir()] == ["past.json"]


def test_a_worker_that_never_wrote_leaves_nothing(tmp_path: Path) -> None:
    set_aside(tmp_path, "push.0")
    fold(tmp_path)

    assert list(tmp_path.iterdir()) == []


def test_workers_whose_metrics_have_another_shape_do_not_spoil_the_rest() -> None:
    """Two releases stand side by side for a moment."""
    other = Metrics((counter("hello", "Hellos.", "sort"), histogram("took_seconds", "How long.")))
    other.counter("hello", sort="x").value += 1
    other.histogram("took_seconds").observe(1)

    found = samples(expose([snapshot("push.0", 3), other.snapshot("push.1", NOW_MS)]))

    assert found["waystation_hello_total", "kind=new"] == 3
    assert found["waystation_took_seconds_count",] == 2
