import pytest

from waystation.telemetry.catalogue import CATALOGUE, Spec, counter, gauge, histogram
from waystation.telemetry.metrics import HistogramCell, Metrics, decode_snapshot, encode_snapshot

SPECS = (
    counter("hello", "Hellos.", "kind"),
    gauge("open", "Open ones."),
    histogram("took_seconds", "How long.", "op", buckets=(0.1, 1.0)),
)


def values(metrics: Metrics) -> dict[str, dict[tuple[str, ...], float]]:
    return {
        family.spec.name: {sample.labels: sample.value for sample in family.samples}
        for family in metrics.snapshot("w", 1).families
    }


def test_a_cell_is_counted_by_hand_and_seen_in_the_snapshot() -> None:
    metrics = Metrics(SPECS)
    new = metrics.counter("hello", kind="new")
    new.value += 1
    new.value += 1
    metrics.gauge("open").value = 7

    assert values(metrics) == {"hello": {("new",): 2}, "open": {(): 7}}


def test_asking_for_the_same_labels_gives_the_same_cell() -> None:
    metrics = Metrics(SPECS)

    assert metrics.counter("hello", kind="a") is metrics.counter("hello", kind="a")
    assert metrics.counter("hello", kind="a") is not metrics.counter("hello", kind="b")
    assert metrics.histogram("took_seconds") is metrics.histogram("took_seconds", op="")


def test_a_histogram_sorts_values_under_their_bounds() -> None:
    metrics = Metrics(SPECS)
    took = metrics.histogram("took_seconds", op="read")
    for value in (0.05, 0.1, 0.5, 3.0):
        took.observe(value)

    (family,) = metrics.snapshot("w", 1).families
    (sample,) = family.samples
    assert sample.counts == (2, 1, 1), "a bound belongs to its bucket"
    assert sample.sum == pytest.approx(3.65)


def test_label_values_beyond_the_limit_share_one_cell() -> None:
    """So that a peer that invents names cannot fill the memory."""
    metrics = Metrics(SPECS, children_max=2)
    for kind in "abcde":
        metrics.counter("hello", kind=kind).value += 1
    metrics.counter("hello", kind="a").value += 1

    assert values(metrics)["hello"] == {("a",): 2, ("b",): 1, ("other",): 3}


def test_unknown_names_labels_and_kinds_are_our_own_mistakes() -> None:
    metrics = Metrics(SPECS)

    with pytest.raises(AssertionError, match="there is no metric nope"):
        metrics.counter("nope")
    with pytest.raises(AssertionError, match="hello has the labels"):
        metrics.counter("hello", colour="red")
    with pytest.raises(AssertionError, match="open is a gauge"):
        metrics.counter("open")
    with pytest.raises(AssertionError, match="two metrics have the name hello"):
        metrics.declare(counter("hello", "Another."))


def test_a_label_takes_its_declared_values_only() -> None:
    metrics = Metrics((counter("polls", "Polls.", "result=ok|error", "reason"),))
    metrics.counter("polls", result="error", reason="whatever").value += 1

    with pytest.raises(AssertionError, match="polls has no result=failed"):
        metrics.counter("polls", result="failed")
    assert values(metrics) == {"polls": {("error", "whatever"): 1}}


def test_gauges_may_be_filled_when_somebody_looks() -> None:
    metrics = Metrics(SPECS)
    metrics.on_read(lambda: setattr(metrics.gauge("open"), "value", 3))

    assert values(metrics) == {"open": {(): 3}}


def test_a_snapshot_survives_its_encoding() -> None:
    metrics = Metrics(SPECS)
    metrics.counter("hello", kind="new").value += 1
    metrics.histogram("took_seconds", op="x").observe(0.2)
    snapshot = metrics.snapshot("push.0", 123)

    assert decode_snapshot(encode_snapshot(snapshot)) == snapshot


def test_the_catalogue_is_well_formed() -> None:
    names = [spec.full_name for spec in CATALOGUE]

    assert len(set(names)) == len(names)
    for spec in CATALOGUE:
        assert spec.help.endswith("."), spec.name
        assert not spec.name.endswith("_total"), "the exposition adds it"
        assert (spec.kind == "histogram") == bool(spec.buckets), spec.name
        assert list(spec.buckets) == sorted(set(spec.buckets)), spec.name


AUTOPUSH_NAMES = [
    "ua.already_connected",
    "ua.command.hello",
    "ua.connection.check",
    "ua.connection.channel_count",
    "ua.connection.lifespan",
    "ua.notification.sent",
    "ua.message_data",
    "ua.expiration",
    "notification.received",
    "notification.auth",
    "notification.auth.ok",
    "notification.message.stored",
    "notification.message_data",
    "notification.bridge.sent",
    "notification.total_request_time",
    "notification.route_time",
    "notification.storage.save_time",
    "notification.direct.delivery_time",
    "notification.direct.delivery_status",
    "updates.drop_user",
    "updates.vapid.draft01",
    "updates.client.host_gone",
    "updates.notification.encoding.aesgcm",
    "error.node.timeout",
    "error.disconnect.semaphore_full",
    "client.channel.full",
    "megaphone.updater.ok",
    "reliability.gc",
    "reliability.error.redis_unavailable",
    "database.retry",
    "database.drop_user",
    "database.ops.inflight",
    "request.in_flight",
    "api_error.{label}",
]


@pytest.mark.parametrize("name", AUTOPUSH_NAMES)
def test_every_metric_of_autopush_has_a_place(name: str) -> None:
    """Section 8.2 of the specification."""
    found = [spec for spec in CATALOGUE if name in spec.autopush.split(", ")]

    assert len(found) == 1
    assert isinstance(found[0], Spec)


def test_many_values_at_once_count_as_each_of_them_would() -> None:
    """Bounds belong to the bucket that they end, in either way."""
    bounds = (0.1, 0.5, 1.0)
    one_by_one, together = HistogramCell(bounds), HistogramCell(bounds)
    values = [0.5, 0.05, 3.0, 0.1, 0.7, 1.0, 0.1, 9.0]
    for value in values:
        one_by_one.observe(value)
    together.observe_all(values[:3])
    together.observe_all(values[3:])
    together.observe_all(())

    assert together.counts == one_by_one.counts == [3, 1, 2, 2]
    assert together.sum == pytest.approx(one_by_one.sum)
