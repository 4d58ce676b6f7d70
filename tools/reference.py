"""Write the generated pages of docs/reference from the code that they describe.

| page | from |
|---|---|
| settings.md | the settings structs (`waystation config docs` prints the same) |
| errors.md | base/errors.py, push/errors.py (docstrings) and push/wire/error_forms.py |
| metrics.md | telemetry/catalogue.py |
| events.md | telemetry/contract.py |
| cli.md | the commands themselves |
| states.md | by hand, but for the picture of milestones: telemetry/contract.py |

Metrics and events name the modules that write them, found by parsing src: one that nobody writes
yet says so.

usage: tools/reference.py
"""

import argparse
import ast
import inspect
import re
import sys
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, get_args

import typer.main

from waystation.app.settings_reference import render_markdown
from waystation.base.errors import WaystationError
from waystation.cli import daemons, serve
from waystation.cli.main import COMMANDS, build_app
from waystation.presence.metrics import CATALOGUE as PRESENCE
from waystation.push.endpoint import simplepush
from waystation.push.wire.error_forms import HTTP_FORMS, RETRY_AFTER_S, form_of
from waystation.telemetry import contract
from waystation.telemetry.catalogue import CLUSTER, PROCESS, PUSH, QUEUE, Spec
from waystation.telemetry.events import EVENT_TYPES

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src" / "waystation"
PAGES = ROOT / "docs" / "reference"
NOTE: Final = "<!-- Written by `make docs` (tools/reference.py). Do not edit. -->"
NOBODY: Final = "–"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    names = list(head)
    lines = [f"| {' | '.join(names)} |", "|" + "---|" * len(names)]
    lines += [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    return lines


def page(title: str, introduction: str, *parts: Iterable[str]) -> str:
    lines = [f"# {title}", "", NOTE, "", *introduction.splitlines()]
    for part in parts:
        lines += ["", *part]
    return "\n".join(lines) + "\n"


def code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


# Who writes what


def modules(*, leave_out: Callable[[str], bool]) -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(SRC.rglob("*.py")):
        name = path.relative_to(SRC).as_posix()
        if not leave_out(name):
            yield name.removesuffix(".py"), ast.parse(path.read_text(encoding="utf-8"))


def writers_of_metrics() -> dict[str, list[str]]:
    """Metric -> modules in which its name stands as a text of its own."""
    found: dict[str, set[str]] = defaultdict(set)
    for module, tree in modules(
        leave_out=lambda name: (
            not name.startswith(("app/", "console/", "ops/", "presence/reports", "push/", "queue/"))
        )
    ):
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found[node.value].add(module)
    return {name: sorted(where) for name, where in found.items()}


def writers_of_events() -> dict[str, list[str]]:
    """Class of an event -> modules that make one."""
    found: dict[str, set[str]] = defaultdict(set)
    for module, tree in modules(
        leave_out=lambda name: name.startswith(("testing/", "telemetry/events/"))
    ):
        imported = {
            alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            and (node.module or "").startswith("waystation.telemetry.events")
            for alias in node.names
        }
        for node in ast.walk(tree):
            match node:
                case ast.Call(
                    func=ast.Attribute(attr="Written"),
                    args=[ast.Attribute(value=ast.Attribute(attr=name), attr="k"), *_],
                ):
                    found[name].add(module)  # its lines are written by hand
                case ast.Call(func=ast.Attribute(attr=name)):
                    found[name].add(module)
                case ast.Call(func=ast.Name(id=name)) if name in imported:
                    found[name].add(module)  # an error may have the name of an event
                case ast.Attribute(value=ast.Name(id="events"), attr=name) if (
                    module == "queue/statistics"
                ):
                    found[name].add(module)  # counted there, and made of the totals
                case _:
                    pass
    return {name: sorted(where) for name, where in found.items()}


# Errors

ABOUT_ERRORS: Final = f"""\
Every error has the same body, with the keys in this order. `errno` is Autopush's number and may
be null; `error` is the reason phrase of the status; `message` is for people and may change;
`more_info` (`endpoint.more_info_url`) leads to this page.

```json
{{"code":410,"errno":106,"error":"Gone","message":"No such subscription","more_info":"https://…"}}
```

A 410 carries `Cache-Control: max-age=86400`, a 401 `WWW-Authenticate: vapid`, a 429 and a 503
`Retry-After` ({RETRY_AFTER_S} seconds where nothing better is known). The label is also the
value of `label` in the metric `waystation_api_error_total`.

Three answers have no such error behind them: a path that is not ours is 404 with an empty body;
a known path with another method is 405 with this body and `Allow`; what is no HTTP is 400, a
head that is too long 431, a request that does not come to its end 408, a connection too many
503, each with an empty body and the connection closed.
"""

BRANCHES: Final = {
    "RejectedError": ("Mend the request", "The input is wrong and nothing was changed."),
    "GoneError": ("Stop asking", "What the request names does not exist, and will not again."),
    "BusyError": ("Come back soon", "A named limit is reached."),
    "UnavailableError": ("Something we need is down", "Nothing was accepted."),
}


def render_errors() -> str:
    assert simplepush.MissingVersionError not in HTTP_FORMS, "it has the form of its parent"
    known = [*HTTP_FORMS, simplepush.MissingVersionError]

    def paragraphs(error: type[WaystationError]) -> tuple[str, str]:
        meaning, blank, advice = inspect.cleandoc(error.__doc__ or "").partition("\n\n")
        assert blank, f"{error.__name__} does not say in a second paragraph what a sender should do"
        return " ".join(meaning.split()), advice

    def section(error: type[WaystationError]) -> list[str]:
        form = form_of(error)
        meaning, advice = paragraphs(error)
        errno = "null" if form.errno is None else str(form.errno)
        status_s = next(
            (
                simplepush.S_STATUSES[ancestor]
                for ancestor in error.__mro__
                if ancestor in simplepush.S_STATUSES
            ),
            form.status,
        )
        head = f"**{form.status}**, errno {errno}"
        if status_s != form.status:
            head += f" (SimplePush, dialect `s`: {status_s})"
        return [f"### {error.label}", "", f"{head}. {meaning}", "", *advice.splitlines(), ""]

    def order(error: type[WaystationError]) -> tuple[int, int, str]:
        form = form_of(error)
        return form.status, form.errno or 0, error.label

    parts: list[list[str]] = [
        table(
            ("label", "status", "errno", "message, unless there is a better one"),
            (
                (
                    f"[{error.label}](#{error.label})",
                    str(form_of(error).status),
                    "null" if form_of(error).errno is None else str(form_of(error).errno),
                    form_of(error).message,
                )
                for error in sorted(known, key=order)
            ),
        )
    ]
    for branch, (title, sentence) in BRANCHES.items():
        leaves = [
            error for error in known if any(base.__name__ == branch for base in error.__mro__)
        ]
        lines = [f"## {title}", "", sentence, ""]
        for error in sorted(leaves, key=order):
            lines += section(error)
        parts.append(lines[:-1])
    parts.append(["## A mistake of ours", "", *section(WaystationError)[:-1]])
    return page(
        "Errors of the endpoint",
        ABOUT_ERRORS,
        *parts,
    )


# Metrics

ABOUT_METRICS: Final = f"""\
Each port serves the metrics of its own processes as one Prometheus exposition at `/metrics`:
the relay port those of all push workers, `queue.ops_port`, `edge.ops_port`, `presence.ops_port`
and `controller.port` those of their role, the console port those of the console. So the sum of a
counter over all ports of all machines is right. A gauge has the label `worker`, and a sum over it
is right too, except for times, lags and `autopush_reliability`, which describes the whole store
and is the same on each node: use `max`. Public ports serve metrics only with `metrics.public`.
Labels without a value are empty. A metric appears when something was counted for the first time.

Names of Autopush became these: dots are underscores, everything begins with `waystation_`, a
counter ends in `_total`, a timer is a histogram of seconds, and the last part of a family of
names is a label. `{NOBODY}` in the last column: the name is reserved, nothing counts it in
this version.
"""


def render_metrics() -> str:
    writers = writers_of_metrics()

    def rows(specs: Iterable[Spec]) -> Iterator[tuple[str, ...]]:
        for spec in sorted(specs, key=lambda spec: spec.full_name):
            suffix = "_total" if spec.kind == "counter" else ""
            yield (
                f"`{spec.full_name}{suffix}`",
                spec.kind,
                ", ".join(labels_of(spec)),
                spec.help,
                f"`{spec.autopush}`" if spec.autopush else "",
                code(writers.get(spec.name, ())) or NOBODY,
            )

    def labels_of(spec: Spec) -> Iterator[str]:
        for name, known in zip(spec.labels, spec.values or ((),) * len(spec.labels), strict=True):
            yield f"`{name}` ({', '.join(known)})" if known else f"`{name}`"

    head = ("metric", "kind", "labels", "what", "in Autopush (statsd)", "counted in")
    return page(
        "Metrics",
        ABOUT_METRICS,
        ["## Push", "", *table(head, rows(PUSH))],
        ["## Queue", "", *table(head, rows(QUEUE))],
        ["## Queue cluster", "", *table(head, rows(CLUSTER))],
        ["## Presence", "", *table(head, rows(PRESENCE))],
        ["## Processes", "", *table(head, rows(PROCESS))],
    )


# Events

ABOUT_EVENTS: Final = f"""\
What happened, one fact to a line, for analysis afterwards: JSON lines in segments under
`DATA_DIR/events/`. This is version {contract.CONTRACT_VERSION} of the contract. Columns and
codes are only added, never renamed and never used again. No column carries a raw id, an
address, an endpoint or a payload: ids are keyed hashes ([privacy](../guides/privacy.md)).

`{NOBODY}` in the last column: the code is part of the contract, nothing writes it in this
version.
"""

GROUPS: Final = (
    (range(15), "Milestones of a notification"),
    (range(20, 40), "Connections of user agents"),
    (range(40, 60), "Requests of app servers"),
    (range(60, 70), "Bridges"),
    (range(70, 80), "Registrations"),
    (range(80, 100), "Stores"),
    (range(100, 200), "Queues and slots"),
    (range(200, 300), "Parties"),
    (range(300, 400), "Processes"),
)


def render_events() -> str:
    writers = writers_of_events()

    def rows(codes: range) -> Iterator[tuple[str, ...]]:
        for kind in contract.KINDS.values():
            if kind.code in codes:
                columns = code(kind.required)
                if kind.optional:
                    columns += f"; may have {code(kind.optional)}"
                if kind.attrs:
                    columns += f"; `attrs`: {', '.join(kind.attrs)}"
                note = "; ".join(filter(None, ("ends it" if kind.terminal else "", kind.note)))
                where = writers.get(EVENT_TYPES[kind.code].__name__, ())
                yield str(kind.code), f"`{kind.name}`", columns, note, code(where) or NOBODY

    head = ("code", "event", "columns", "", "written in")
    placed = {kind for codes, _ in GROUPS for kind in codes}
    assert contract.KINDS.keys() <= placed, "a new range of codes needs a title in GROUPS"
    column_head = ("column", "type", "meaning")
    names = {kind.code: kind.name.removeprefix("push.") for kind in contract.KINDS.values()}
    return page(
        "Events",
        ABOUT_EVENTS,
        ["## On every event", "", *table(column_head, _columns(contract.ENVELOPE))],
        [
            "## Columns",
            "",
            "One that does not apply is left out.",
            "",
            *table(column_head, _columns(contract.DOMAIN)),
        ],
        *([f"## {title}", "", *table(head, rows(codes))] for codes, title in GROUPS),
        [
            "## Transitions",
            "",
            "Which milestone may follow which. Anything else is recorded too; whoever reads the",
            "events counts it as a gap. As a picture: [states](states.md#a-notification).",
            "",
            *table(
                ("from", "to"),
                (
                    (f"`{names[before]}`", code(names[after] for after in sorted(afters)))
                    for before, afters in sorted(contract.TRANSITIONS.items())
                ),
            ),
        ],
    )


def _columns(columns: Iterable[Any]) -> Iterator[tuple[str, str, str]]:
    for column in columns:
        meaning = column.meaning.replace("<", "&lt;").replace(">", "&gt;")
        yield f"`{column.name}`", column.type, meaning


# Commands

ABOUT_COMMANDS: Final = """\
Every command answers `--help`, and `waystation --version` says which one it is. Facts go to
stdout, complaints and logs to stderr.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | it failed; the last line on stderr says why |
| 2 | wrong command line |
| 3 | `send`: the subscription is gone for good |
| 75 | `send`: the server is busy |
| 78 | wrong configuration |
| 130 | Ctrl-C |

`WAYSTATION_CONFIG` names the settings file where `--config` does not.
"""


def render_cli() -> str:
    commands: Mapping[str, Any] = typer.main.get_command(build_app()).commands  # type: ignore[attr-defined]
    parts = [_argparse("waystation serve", serve.parser())]
    for name in COMMANDS:
        parts.append(_typer(f"waystation {name}", commands[name]))
        for inner, command in getattr(commands[name], "commands", {}).items():
            parts.append(_typer(f"waystation {name} {inner}", command, level=3))
    parts += [_argparse(name, daemons.parser(name)) for name in ("autoconnect", "autoendpoint")]
    return page(
        "Commands",
        ABOUT_COMMANDS,
        *parts,
    )


def _argparse(name: str, parser: argparse.ArgumentParser) -> list[str]:
    rows: list[tuple[str, str]] = []
    for action in parser._actions:  # noqa: SLF001  argparse shows them nowhere else
        if "-h" in action.option_strings:
            continue
        metavar = action.metavar if isinstance(action.metavar, str) else ""
        spelled = ", ".join(action.option_strings) or f"[{metavar} …]"
        if action.option_strings and metavar:
            spelled += f" {metavar}"
        rows.append((f"`{spelled}`", action.help or ""))
    lines = [f"## {name}", "", *textwrap.wrap(parser.description or "", 100), ""]
    lines += [*table(("", ""), rows), "", *textwrap.wrap(parser.epilog or "", 100)]
    return lines


def _typer(name: str, command: Any, level: int = 2) -> list[str]:
    lines = [f"{'#' * level} {name}", "", *inspect.cleandoc(command.help or "").splitlines()]
    rows: list[tuple[str, str]] = []
    for param in command.params:
        is_flag = False
        if param.param_type_name == "argument":
            word = param.metavar or param.name.upper()
            spelled = word if param.required else f"[{word}]"
        else:
            is_flag = param.is_flag
            spelled = ", ".join(param.opts) + ("" if is_flag else f" {_kind(param)}")
        sentence = param.help or ""
        if param.default is not None and param.default != "" and not is_flag:
            sentence += f" Default: `{param.default}`."
        rows.append((f"`{spelled}`", sentence.strip()))
    if rows:
        lines += ["", *table(("", ""), rows)]
    return lines


def _kind(param: Any) -> str:
    annotation = param.type_descriptor.annotation
    if param.name.endswith("_dir"):
        return "DIR"
    choices = "/".join(word for word in get_args(annotation) if isinstance(word, str))
    return choices or {"Path": "FILE", "int": "N"}.get(annotation.__name__, "TEXT")


# States

MILESTONES: Final = re.compile(r"(from the event contract\. -->\n```mermaid\n).*?(```)", re.DOTALL)


def render_states() -> str:
    """The page as it is, with the picture of the contract in force."""
    names = {kind.code: kind.name.removeprefix("push.") for kind in contract.KINDS.values()}
    arrows = ["[*] --> received"]
    for before, afters in sorted(contract.TRANSITIONS.items()):
        arrows += [f"{names[before]} --> {names[after]}" for after in sorted(afters)]
    arrows += [f"{names[end]} --> [*]" for end in sorted(contract.TERMINAL)]
    picture = "stateDiagram-v2\n" + "".join(f"    {arrow}\n" for arrow in arrows)
    written = (PAGES / "states.md").read_text(encoding="utf-8")
    drawn, pictures = MILESTONES.subn(lambda found: found[1] + picture + found[2], written)
    assert pictures == 1, "states.md has lost the place of its last picture"
    return drawn


RENDERERS: Final[Mapping[str, Callable[[], str]]] = {
    "settings.md": render_markdown,
    "errors.md": render_errors,
    "metrics.md": render_metrics,
    "events.md": render_events,
    "cli.md": render_cli,
    "states.md": render_states,
}


def main() -> int:
    for name, render in RENDERERS.items():
        path = PAGES / name
        path.write_text(render(), encoding="utf-8")
        print(f"{path.relative_to(ROOT)} is written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
