"""Log lines: configuration, output forms, and removal of ids and secrets.

Rule 1: logging never waits. Lines go to a thread through a queue of `lines_max`; when it is full,
        further lines are dropped and a line tells how many.
Rule 2: ids, tokens and payloads never appear. `tag(raw)` writes an id; bytes, UUIDs, endpoint
        tokens and objects that are passed by mistake are tagged or replaced here.
Rule 3: a line is one event with fields, and a request or connection gets one when it ends:
        `log.info("connection.closed", uaid=tag(uaid), reason=reason)`.

Forms: coloured text on a terminal, JSON lines elsewhere; the daemons write mozlog JSON (the form
of Autopush's logs) unless `human_logs` is set.
"""

import atexit
import contextlib
import enum
import logging
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, MutableMapping
from queue import SimpleQueue
from secrets import token_bytes
from typing import Any, Literal, TextIO, cast

import msgspec
import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor

from waystation.base.clock import Clock, SystemClock
from waystation.base.ids import Tagger, parse_uuid

LINES_MAX = 20_000
TEXT_MAX = 2_000
DEPTH_MAX = 4

Form = Literal["text", "json", "mozlog"]
Level = Literal["debug", "info", "warning", "error", "critical"]

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
_SYSLOG = {"debug": 7, "info": 6, "warning": 4, "error": 3, "exception": 3, "critical": 2}
_UUID = re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b")
_TOKEN = re.compile(r"gAAAA[A-Za-z0-9_=-]{20,}|\beyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
_OPEN_IDS = frozenset({"mid"})  # already a hash; joins log lines with events in the lake

# Until `configure` sets the cluster's key, tags are valid within one process only.
_tagger = Tagger(token_bytes(32))
_writer: "LineWriter | None" = None


def get(name: str) -> FilteringBoundLogger:
    """The logger of a module or role; each of its lines has `name`."""
    return cast(FilteringBoundLogger, structlog.get_logger(name))


def tag(raw: bytes) -> str:
    """The keyed hash of an id for log lines, 16 hex digits."""
    return _tagger.tag(raw)


def dropped_total() -> int:
    """Log lines that this process dropped because the output was too slow."""
    return 0 if _writer is None else _writer.dropped


class LineWriter:
    """Writes lines to a stream in its own thread."""

    def __init__(
        self,
        stream: TextIO,
        *,
        lines_max: int = LINES_MAX,
        dropped_line: Callable[[int], str] = "{} lines were dropped".format,
    ) -> None:
        self._stream = stream
        self._dropped_line = dropped_line
        self._lines_max = lines_max
        self._queue: SimpleQueue[str | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._closed = False
        self._untold = 0
        self.dropped = 0

    def write(self, line: str) -> None:
        if self._closed or self._queue.qsize() >= self._lines_max:
            self.dropped += 1
            self._untold += 1
            return
        self._queue.put(line)
        if self._thread is None:
            self._start()

    def close(self, timeout_s: float = 2.0) -> None:
        """Wait until all lines are written, at most for the timeout."""
        self._closed = True
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(timeout_s)

    def _start(self) -> None:
        with self._starting:  # lines may come from any thread
            if self._thread is None:
                self._thread = threading.Thread(target=self._write_on, name="logs", daemon=True)
                self._thread.start()

    def _write_on(self) -> None:
        while (line := self._queue.get()) is not None:
            text = [line]
            while not self._queue.empty() and len(text) < 1000:
                more = self._queue.get()
                if more is None:
                    self._queue.put(None)
                    break
                text.append(more)
            if self._untold:
                untold, self._untold = self._untold, 0
                text.append(self._dropped_line(untold))
            # A closed stream (pipe, terminal) must not stop the process.
            with contextlib.suppress(OSError, ValueError):
                self._stream.write("\n".join(text) + "\n")
                self._stream.flush()


def configure(
    *,
    form: Form | None = None,
    level: Level = "info",
    name: str = "waystation",
    version: str = "",
    tag_key: bytes | None = None,
    stream: TextIO | None = None,
    clock: Clock | None = None,
    lines_max: int = LINES_MAX,
) -> LineWriter:
    """Set up logging of this process, once, before the first line.

    Without a `form`, a terminal gets text and any other output JSON. With the same `tag_key`, tags
    are equal in all processes. Libraries' `logging` records are written in the same form.
    """
    global _tagger, _writer  # noqa: PLW0603 one key and one stream for a process
    stream = stream or cast(TextIO, sys.stderr)
    if form is None:
        form = "text" if stream.isatty() else "json"
    if tag_key is not None:
        _tagger = Tagger(tag_key)
    stamp, render = _stamp(clock or SystemClock(), form), _renderer(form, name, version)

    def dropped_line(lines: int) -> str:
        line: EventDict = {"event": "log.dropped", "level": "warning", "lines": lines}
        return cast(str, render(None, "warning", cast(EventDict, stamp(None, "warning", line))))

    _writer = writer = LineWriter(stream, lines_max=lines_max, dropped_line=dropped_line)
    atexit.register(writer.close)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            _add_name,
            structlog.processors.format_exc_info,
            without_secrets,
            stamp,
            render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=lambda *names: _Lines(writer, *names),
        cache_logger_on_first_use=True,
    )
    root = logging.getLogger()
    root.handlers[:] = [_Forward()]
    root.setLevel(max(_LEVELS[level], logging.INFO))  # no debug lines of libraries
    return writer


class _Lines:
    """The logger that structlog calls, for all levels."""

    def __init__(self, writer: LineWriter, name: str = "") -> None:
        self._writer = writer
        self.name = name

    def msg(self, line: str) -> None:
        self._writer.write(line)

    debug = info = warning = error = critical = exception = log = msg


def _add_name(logger: _Lines, _method: str, event_dict: EventDict) -> EventDict:
    if logger.name:
        event_dict.setdefault("logger", logger.name)
    return event_dict


class _Forward(logging.Handler):
    """Passes `logging` records of libraries to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        level = "critical" if record.levelno >= 50 else record.levelname.lower()
        say = getattr(get(record.name), level, get(record.name).info)
        say(record.getMessage(), **({"exc_info": record.exc_info} if record.exc_info else {}))


def without_secrets(
    _logger: object, _method: str, event_dict: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """A structlog processor that removes ids, secrets and payloads."""
    for key, value in event_dict.items():
        if key not in _OPEN_IDS:
            event_dict[key] = _harmless(value, DEPTH_MAX)
    return event_dict


def _harmless(value: object, depth: int) -> object:
    match value:
        case None | bool() | int() | float():
            return value
        case enum.Enum():
            return _harmless(value.value, depth)
        case str():
            return _harmless_text(value)
        case bytes() | bytearray():
            return tag(bytes(value))
        case BaseException():
            return f"{type(value).__name__}: {_harmless_text(str(value))}"
        case Mapping() if depth:
            table = cast(Mapping[object, object], value)
            return {_harmless_text(str(k)): _harmless(v, depth - 1) for k, v in table.items()}
        case list() | tuple() | set() | frozenset() if depth:
            return [_harmless(one, depth - 1) for one in cast(list[object], value)]
        case _:
            return f"<{type(value).__name__}>"


def _harmless_text(text: str) -> str:
    if len(text) == 32 and (raw := parse_uuid(text)) is not None:
        return tag(raw)
    text = _UUID.sub(lambda found: tag(parse_uuid(found[0]) or b""), text)
    text = _TOKEN.sub("<token>", text)
    return text if len(text) <= TEXT_MAX else text[:TEXT_MAX] + "…"


def _stamp(clock: Clock, form: Form) -> Processor:
    def stamp(_logger: object, _method: str, event_dict: EventDict) -> EventDict:
        now_us = clock.now_us()
        if form == "mozlog":
            event_dict["timestamp"] = now_us * 1000
        else:
            seconds, us = divmod(now_us, 1_000_000)
            whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
            event_dict["timestamp"] = f"{whole}.{us // 1000:03d}Z"
        return event_dict

    return stamp


def _renderer(form: Form, name: str, version: str) -> Processor:
    match form:
        case "text":
            plain = structlog.dev.plain_traceback
            return structlog.dev.ConsoleRenderer(colors=True, exception_formatter=plain)
        case "json":
            return _render_json
        case "mozlog":
            return _mozlog(name, version)


def _render_json(_logger: object, _method: str, event_dict: EventDict) -> str:
    ordered = {key: event_dict.pop(key) for key in ("timestamp", "level", "event")}
    return _encode(ordered | dict(event_dict))


def _mozlog(name: str, version: str) -> Processor:
    """One JSON object per line in Autopush's form; our fields are in `Fields`."""
    hostname, pid = socket.gethostname(), os.getpid()
    logger = f"{name}-{version}" if version else name

    def render(_logger: object, _method: str, event_dict: EventDict) -> str:
        timestamp, level = event_dict.pop("timestamp"), event_dict.pop("level")
        return _encode(
            {
                "Timestamp": timestamp,
                "Type": f"{name}:log",
                "Logger": logger,
                "Hostname": hostname,
                "EnvVersion": "2.0",
                "Severity": _SYSLOG.get(level, 6),
                "Pid": pid,
                "Fields": {"message": event_dict.pop("event"), **event_dict},
            }
        )

    return render


_encode_bytes: Callable[[object], bytes] = msgspec.json.Encoder().encode


def _encode(line: object) -> str:
    return _encode_bytes(line).decode()
