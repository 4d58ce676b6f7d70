"""The status page: plain HTML with one style sheet inside, readable without scripts."""

import html
from collections.abc import Iterable, Sequence

from .model import ServerStatus, WorkerStatus

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2433; --soft: #667085; --line: #d9dee7;
  --paper: #fbfaf7; --card: #fff; --good: #2c7a4b; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9f0; --soft: #98a2b3; --line: #333b4b;
  --paper: #14181f; --card: #1b2029; --good: #6fcf97; --bad: #ff8a80; } }
body { margin: 0 auto; max-width: 62rem; padding: 2.5rem 1.25rem; background: var(--paper);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif; font-variant-numeric: tabular-nums; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1rem; margin: 2.2rem 0 .6rem; }
p.state { margin: .2rem 0 1.6rem; color: var(--soft); }
.good { color: var(--good); } .bad { color: var(--bad); }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .8rem;
  margin: 0; }
dl div { background: var(--card); border: 1px solid var(--line); border-radius: .6rem;
  padding: .8rem 1rem; }
dt { color: var(--soft); font-size: .85rem; } dd { margin: 0; font-size: 1.35rem; }
table { width: 100%; border-collapse: collapse; }
th, td { text-align: left; padding: .4rem .7rem .4rem 0; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 500; font-size: .85rem; }
td.n, th.n { text-align: right; }
footer { margin-top: 2.5rem; color: var(--soft); font-size: .85rem; } code { font-size: .92em; }
"""

RATE_TITLES = {
    "received": "received / s",
    "direct": "delivered directly / s",
    "stored": "stored / s",
    "acked": "acked / s",
}


def render_status(status: ServerStatus, *, refresh_s: int) -> str:
    healthy = status.store_ok and not status.missing
    refresh = f'<meta http-equiv="refresh" content="{refresh_s}">' if refresh_s else ""
    body = "".join(
        (
            "<h1>Waystation</h1>",
            _state_line(status, healthy),
            _figures(
                [
                    ("user agents connected", f"{status.connections('connect'):,}"),
                    ("party streams open", f"{status.connections('presence'):,}"),
                    *(
                        (title, f"{status.rates.get(name, 0.0):,.1f}")
                        for name, title in RATE_TITLES.items()
                    ),
                    ("store on disk", size(status.store_bytes)),
                    ("disk free", size(status.disk_free_bytes)),
                    ("broadcasts", f"{status.broadcasts:,}"),
                ]
            ),
            "<h2>Processes</h2>",
            _table(
                ("process", "roles", "pid", "up", "connections", "memory", "loop lag"),
                (_worker_row(worker, status.now_ms) for worker in status.workers),
                numeric_from=2,
            ),
            "<h2>Addresses</h2>",
            _table(("what", "where"), status.addresses),
            f"<footer>Waystation {html.escape(status.version)} · store"
            f" <code>{html.escape(status.store_url)}</code> · the same figures as JSON:"
            " <code>/v1/status</code></footer>",
        )
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"{refresh}<title>Waystation</title><style>{_STYLE}</style></head><body>{body}</body></html>"
    )


def _state_line(status: ServerStatus, healthy: bool) -> str:
    up = duration(status.now_ms - status.started_at_ms)
    if healthy:
        return f'<p class="state"><span class="good">All is well.</span> Up for {up}.</p>'
    troubles: list[str] = []
    if not status.store_ok:
        troubles.append("the store does not answer")
    troubles.extend(f"process {name} does not answer" for name in status.missing)
    text = html.escape("; ".join(troubles))
    return f'<p class="state"><span class="bad">Trouble: {text}.</span> Up for {up}.</p>'


def _figures(figures: Iterable[tuple[str, str]]) -> str:
    cells = "".join(
        f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd></div>"
        for name, value in figures
    )
    return f"<dl>{cells}</dl>"


def _worker_row(worker: WorkerStatus, now_ms: int) -> tuple[str, ...]:
    return (
        worker.name,
        ", ".join(worker.roles),
        str(worker.pid),
        duration(now_ms - worker.started_at_ms),
        f"{worker.connections:,}",
        size(worker.rss_bytes),
        f"{worker.loop_lag_ms:.1f} ms",
    )


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]], *, numeric_from: int = 99) -> str:
    def cells(tag: str, values: Sequence[str]) -> str:
        return "".join(
            f"<{tag}{' class=n' if place >= numeric_from else ''}>{html.escape(value)}</{tag}>"
            for place, value in enumerate(values)
        )

    lines = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f"<table><thead><tr>{cells('th', titles)}</tr></thead><tbody>{lines}</tbody></table>"


def size(count_bytes: int) -> str:
    """For people: 4.2 MiB."""
    amount = float(count_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def duration(ms: int) -> str:
    """For people: the two largest units that are not zero."""
    seconds = max(0, ms // 1000)
    parts: list[str] = []
    for unit, length_s in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, seconds = divmod(seconds, length_s)
        if count:
            parts.append(f"{count} {unit}")
        if len(parts) == 2:
            break
    return " ".join(parts) or "0 s"
