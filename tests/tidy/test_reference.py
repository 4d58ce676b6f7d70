"""The reference pages are the ones that the code gives, and the other pages agree with it."""

import re
from pathlib import Path

import pytest

from tests.tidy.repository import ROOT, files, listed, relative
from tools.reference import PAGES, RENDERERS, writers_of_metrics
from waystation.app.settings import PREFIX, RETIRED, Settings
from waystation.base.settings import describe
from waystation.push.connect.month_switch import Stage
from waystation.push.connect.session_states import State
from waystation.push.connect.window import Pass
from waystation.telemetry.catalogue import CATALOGUE

STATES = (PAGES / "states.md").read_text(encoding="utf-8")
ARROW = re.compile(r"^ *(\w+|\[\*\]) --> (\w+|\[\*\])", re.MULTILINE)
LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
COMMAND = re.compile(r"(?:^|[`\s])waystation ([a-z][a-z-]*(?: [a-z][a-z-]*)?)((?: [^`\n;|]+)?)")
FLAG = re.compile(r"(?<!\S)(--[a-z][a-z-]*)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def _diagram(title: str) -> list[tuple[str, str]]:
    section = STATES.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return ARROW.findall(section)


def _named(title: str) -> set[str]:
    return {name for arrow in _diagram(title) for name in arrow} - {"[*]"}


def _pages() -> dict[str, str]:
    """Every page of the documentation, without its examples."""
    return {
        relative(path): FENCE.sub("", path.read_text(encoding="utf-8"))
        for path in (*files(ROOT / "docs"), ROOT / "CONTRIBUTING.md")
        if path.suffix == ".md"
    }


def _anchors(path: Path) -> set[str]:
    """As the usual viewers make them of headings."""
    return {
        re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        for heading in HEADING.findall(path.read_text(encoding="utf-8"))
    }


@pytest.mark.parametrize("name", RENDERERS)
def test_a_generated_page_is_current(name: str) -> None:
    assert (PAGES / name).read_text(encoding="utf-8") == RENDERERS[name](), "run `make docs`"


def test_the_diagrams_of_a_connection_have_the_states_of_the_code() -> None:
    assert _named("A connection") == {state.name.lower() for state in State}
    assert _named("The pass over storage") == {step.value for step in Pass}
    assert _named("Moving to a new month") == {stage.value for stage in Stage}


def test_every_link_of_the_documentation_leads_somewhere() -> None:
    dead: list[str] = []
    pages = _pages()
    for page, text in pages.items():
        for target in LINK.findall(text):
            if "://" in target:
                continue
            path, _, anchor = target.partition("#")
            where = (ROOT / page).parent / path if path else ROOT / page
            anchors = _anchors(where) if where.is_file() else set[str]()
            if not where.exists() or (anchor and anchor not in anchors):
                dead.append(f"{page}: {target}")

    assert not dead, listed("mend the link", dead)


def test_the_documentation_names_only_metrics_that_something_counts() -> None:
    counted = writers_of_metrics()
    full = {spec.full_name for spec in CATALOGUE if spec.name in counted}
    told = {
        f"{page}: {name}"
        for page, text in _pages().items()
        # A server's tables begin like our metrics.
        if not page.startswith(("docs/reference/", "docs/guides/stores/"))
        for name in re.findall(r"\bwaystation_[a-z_]+[a-z]", text)
        if name.removesuffix("_total") not in full
    }

    assert not told, listed("nothing counts it", sorted(told))


def test_the_documentation_names_only_settings_that_exist() -> None:
    known = {row.name for row in describe(Settings, prefix=PREFIX)}
    sections = {name.partition(".")[0] for name in known if "." in name}
    pattern = re.compile(rf"`((?:{'|'.join(sorted(sections))})\.[a-z_]+)`")
    # Files and tables that look like settings.
    others = {"store.py", "push.py", "store.md", "log.gap", "connect.lock", "log.dropped"}
    unknown = {
        f"{page}: {name}"
        for page, text in _pages().items()
        if not page.startswith("docs/reference/")
        for name in pattern.findall(text)
        if name not in known | others and not name.startswith("push.superseded")
        if not (name in RETIRED and page.startswith("docs/adr/"))  # a decision may say what left
    }

    assert not unknown, listed("no such setting", sorted(unknown))


def _commands() -> dict[str, set[str]]:
    """Command -> its flags, as the page about them says."""
    found: dict[str, set[str]] = {}
    for section in (PAGES / "cli.md").read_text(encoding="utf-8").split("\n#"):
        title, _, text = section.lstrip("# ").partition("\n")
        if title.startswith("waystation "):
            found[title.removeprefix("waystation ")] = set(FLAG.findall(text.replace("`", " ")))
    return found


def test_the_documentation_shows_only_commands_and_flags_that_exist() -> None:
    known = _commands()
    wrong: list[str] = []
    for path in (*files(ROOT / "docs"), *files(ROOT / "examples"), *files(ROOT / "deploy")):
        if path.suffix not in {".md", ".service"} or path.parent == PAGES:
            continue
        for command, rest in COMMAND.findall(path.read_text(encoding="utf-8")):
            name = command if command in known else command.partition(" ")[0]
            if name in known:
                wrong += [
                    f"{relative(path)}: waystation {name} {flag}"
                    for flag in FLAG.findall(rest)
                    if flag not in known[name]
                ]
            elif any(mark in rest + command for mark in ("--", " store")):
                wrong.append(f"{relative(path)}: waystation {command}")

    assert {"serve", "listen", "send", "store check"} <= known.keys()
    assert not wrong, listed("docs/reference/cli.md says what there is", wrong)
