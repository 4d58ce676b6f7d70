"""Move the fragments of changes/ into CHANGELOG.md under a new version.

usage: tools/changelog.py VERSION
"""

import datetime
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHANGES = ROOT / "changes"
PAGE = ROOT / "CHANGELOG.md"
KINDS = ("added", "changed", "deprecated", "removed", "fixed", "security")
UNRELEASED = "## Unreleased\n\nSee [changes/](changes/).\n"


def section(version: str, date: datetime.date, fragments: list[Path]) -> str:
    lines = [f"## {version} - {date.isoformat()}", ""]
    for kind in KINDS:
        sentences = [
            " ".join(path.read_text().split())
            for path in fragments
            if path.name.endswith(f".{kind}.md")
        ]
        if sentences:
            lines += [f"### {kind.capitalize()}", ""]
            lines += [f"- {sentence}" for sentence in sentences]
            lines += [""]
    return "\n".join(lines)


def main(version: str) -> int:
    fragments = sorted(path for path in CHANGES.glob("*.md") if path.name != "README.md")
    if not fragments:
        print("changes/ holds no fragment: there is nothing to release")
        return 1
    page = PAGE.read_text()
    if page.count(UNRELEASED) != 1:
        print(f"{PAGE.name} has lost its section about what is unreleased")
        return 1
    today = datetime.datetime.now(tz=datetime.UTC).date()
    PAGE.write_text(page.replace(UNRELEASED, f"{UNRELEASED}\n{section(version, today, fragments)}"))
    for path in fragments:
        path.unlink()
    print(
        f"{len(fragments)} changes are now under {version}; set the version in pyproject.toml too"
    )
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2 or not sys.argv[1]:
        sys.exit("usage: make changelog VERSION=1.2.3")
    sys.exit(main(sys.argv[1]))
