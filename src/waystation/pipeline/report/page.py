"""The page: tables and charts in one self-contained HTML document.

The page uses no network, clock or randomness: the same tables give the same bytes. Every number is
in a table, and the page contains all tables as JSON.
"""

import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import Any

from waystation.pipeline.report import sections
from waystation.pipeline.report.tables import Tables


def page(tables: Tables, *, title: str = "Waystation") -> str:
    """The whole document."""
    days = [row["day"] for row in tables["days"]]
    span = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}" if days else "no days"
    made = [(one.anchor, one.title, one.render(tables)) for one in sections.SECTIONS]
    links = "".join(f'<a href="#{anchor}">{escape(name)}</a>' for anchor, name, _ in made)
    body = "".join(
        f'<h2 id="{anchor}">{escape(name)}</h2>{content}' for anchor, name, content in made
    )
    # `</` would end the script early.
    data = json.dumps(tables, sort_keys=True, separators=(",", ":")).replace("</", "<\\/")
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            '<head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{escape(title)}: {escape(span)}</title>",
            f"<style>{_packaged('style.css')}</style></head>",
            "<body>",
            f"<header><h1>{escape(title)}</h1><p>What happened to every message, {escape(span)},"
            f" UTC.</p><nav>{links}</nav></header>",
            f"<main>{body}</main>",
            "<footer>Hashes are keyed: they identify no one outside this installation. Groups of"
            " fewer than 20 user agents are counted as other.</footer>",
            f'<script type="application/json" id="tables">{data}</script>',
            f"<script>{_packaged('sort.js')}</script>",
            "</body></html>",
            "",
        ]
    )


def _packaged(name: str) -> str:
    return (files("waystation.pipeline.report") / name).read_text(encoding="utf-8").strip()


def csv(rows: Sequence[dict[str, Any]]) -> str:
    """A table as CSV; nulls are empty."""
    if not rows:
        return ""
    lines = [",".join(rows[0])]
    for row in rows:
        texts = ["" if value is None else str(value) for value in row.values()]
        lines.append(
            ",".join(
                '"' + text.replace('"', '""') + '"' if set(text) & set(',"\n') else text
                for text in texts
            )
        )
    return "\n".join(lines) + "\n"
