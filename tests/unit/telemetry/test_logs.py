import io
import json
import logging
import re
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog

from waystation.base.clock import ManualClock
from waystation.base.ids import Tagger
from waystation.telemetry import logs

UAID = uuid.UUID("deadbeef-0000-4000-8abc-0123456789ab")
KEY = b"k" * 32
TAGGED = Tagger(KEY).tag(UAID.bytes)

Configure = Callable[..., "Lines"]


class Lines:
    """What a configured process has written so far."""

    def __init__(self, writer: logs.LineWriter, stream: io.StringIO) -> None:
        self._writer = writer
        self._stream = stream

    def text(self) -> str:
        self._writer.close()
        return self._stream.getvalue()

    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text().splitlines()]


@pytest.fixture
def configure() -> Iterator[Configure]:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    tagger = logs._tagger

    def run(**options: Any) -> Lines:
        stream = io.StringIO()
        clock = ManualClock(now_ms=1_700_000_000_123)
        writer = logs.configure(stream=stream, clock=clock, tag_key=KEY, **options)
        return Lines(writer, stream)

    yield run
    root.handlers[:] = before
    root.setLevel(level)
    logs._tagger = tagger
    structlog.reset_defaults()


def test_lines_are_json_where_nobody_watches(configure: Configure) -> None:
    lines = configure()
    logs.get("push.connect").info("connection.closed", uaid=logs.tag(UAID.bytes), lived_s=841)

    assert lines.rows() == [
        {
            "timestamp": "2023-11-14T22:13:20.123Z",
            "level": "info",
            "event": "connection.closed",
            "logger": "push.connect",
            "uaid": TAGGED,
            "lived_s": 841,
        }
    ]


def test_text_is_coloured_and_readable(configure: Configure) -> None:
    lines = configure(form="text")
    logs.get("push").warning("store.slow", took_s=1.5)
    text = lines.text()

    assert "\x1b[" in text
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert "store.slow" in plain
    assert "took_s=1.5" in plain


def test_the_daemons_write_mozlog(configure: Configure) -> None:
    """Section 8.3 of the specification."""
    lines = configure(form="mozlog", name="autoconnect", version="1.0")
    logs.get("x").error("Session", uaid_hash="h", nacks=2)

    (row,) = lines.rows()
    assert row["Timestamp"] == 1_700_000_000_123_000_000
    assert (row["Type"], row["Logger"]) == ("autoconnect:log", "autoconnect-1.0")
    assert (row["EnvVersion"], row["Severity"]) == ("2.0", 3)
    assert isinstance(row["Pid"], int)
    assert row["Hostname"]
    assert row["Fields"] == {"message": "Session", "uaid_hash": "h", "nacks": 2, "logger": "x"}


def test_lines_below_the_level_are_not_written(configure: Configure) -> None:
    lines = configure(level="warning")
    log = logs.get("x")
    log.info("no")
    log.warning("yes")

    assert [row["event"] for row in lines.rows()] == ["yes"]


@pytest.mark.parametrize(
    "value",
    [
        UAID.bytes,
        UAID.hex,
        str(UAID),
        str(UAID).upper(),
        f"no user {UAID} here",
        [str(UAID)],
        {"inner": UAID.bytes},
        {str(UAID): 1},
        ValueError(f"unknown {UAID}"),
        UAID,
    ],
    ids=["raw", "hex", "dashed", "upper", "inside", "list", "value", "key", "error", "object"],
)
def test_an_id_passed_by_mistake_is_tagged_or_left_out(configure: Configure, value: object) -> None:
    lines = configure()
    logs.get("x").info("event", value=value)
    text = lines.text()

    assert str(UAID) not in text.lower()
    assert UAID.hex not in text
    assert TAGGED in text or "<UUID>" in text


def test_an_id_in_a_traceback_is_tagged_too(configure: Configure) -> None:
    lines = configure()
    try:
        raise KeyError(str(UAID))
    except KeyError:
        logs.get("x").exception("failed")
    text = lines.text()

    assert "Traceback" in text
    assert str(UAID) not in text
    assert TAGGED in text


def test_endpoint_and_vapid_tokens_are_replaced(configure: Configure) -> None:
    lines = configure()
    jwt = "eyJhbGciOiJFUzI1NiJ9.eyJhdWQiOiJ4In0.c2lnbmF0dXJl"
    logs.get("x").info("event", a="http://h/wpush/v2/gAAAAABk" + "x" * 40, b=f"vapid t={jwt}, k=x")

    (row,) = lines.rows()
    assert row["a"] == "http://h/wpush/v2/<token>"
    assert row["b"] == "vapid t=<token>, k=x"


def test_a_tracking_id_is_a_hash_already_and_stays(configure: Configure) -> None:
    lines = configure()
    logs.get("x").info("event", mid="0" * 32)

    assert lines.rows()[0]["mid"] == "0" * 32


def test_objects_and_long_texts_do_not_spill_into_a_line(configure: Configure) -> None:
    lines = configure()
    deep: Any = "x"
    for _ in range(10):
        deep = [deep]
    logs.get("x").info("event", thing=object(), long="y" * 5_000, deep=deep)

    (row,) = lines.rows()
    assert row["thing"] == "<object>"
    assert len(row["long"]) == logs.TEXT_MAX + 1
    assert row["deep"] == [[[["<list>"]]]]


def test_lines_of_libraries_come_out_the_same_way(configure: Configure) -> None:
    lines = configure()
    logging.getLogger("uvicorn.error").warning("started for %s", UAID)
    logging.getLogger("asyncio").debug("not shown")

    (row,) = lines.rows()
    assert (row["logger"], row["level"]) == ("uvicorn.error", "warning")
    assert row["event"] == f"started for {TAGGED}"


class Stuck(io.StringIO):
    """A reader that takes nothing until it is released, as a stopped terminal does."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Event()
        self.release = threading.Event()

    def write(self, text: str) -> int:
        self.entered.set()
        assert self.release.wait(10)
        return super().write(text)


def test_a_reader_that_does_not_read_makes_lines_fall_and_nobody_wait() -> None:
    stream = Stuck()
    writer = logs.LineWriter(stream, lines_max=3)
    writer.write("first")
    assert stream.entered.wait(10)
    for index in range(5):
        writer.write(str(index))
    assert writer.dropped == 2
    stream.release.set()
    writer.close()

    assert stream.getvalue().splitlines() == ["first", "0", "1", "2", "2 lines were dropped"]


def test_a_report_of_dropped_lines_has_the_form_of_the_others(configure: Configure) -> None:
    lines = configure(lines_max=1)
    lines._writer._untold = 4
    lines._writer.dropped = 4
    logs.get("x").info("event")

    assert logs.dropped_total() == 4
    assert [(row["event"], row.get("lines")) for row in lines.rows()] == [
        ("event", None),
        ("log.dropped", 4),
    ]


def test_a_stream_that_is_gone_is_survived() -> None:
    stream = io.StringIO()
    stream.close()
    writer = logs.LineWriter(stream)
    writer.write("into the void")
    writer.close()

    assert writer.dropped == 0


def test_before_any_configuration_tags_still_hide_ids() -> None:
    assert re.fullmatch(r"[0-9a-f]{16}", logs.tag(UAID.bytes))
