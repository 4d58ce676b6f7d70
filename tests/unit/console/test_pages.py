"""The status page: figures, troubles, and nothing unescaped."""

import pytest

from waystation.console.model import ServerStatus, WorkerStatus
from waystation.console.pages import duration, render_status, size


def status(**changes: object) -> ServerStatus:
    worker = WorkerStatus(
        name="push.0",
        roles=("connect", "endpoint"),
        pid=7,
        started_at_ms=0,
        reported_at_ms=1,
        connections=1_234,
        rss_bytes=50 << 20,
    )
    fields: dict[str, object] = {
        "version": "1.0",
        "now_ms": 90_000,
        "started_at_ms": 0,
        "workers": (worker, worker),
        "rates": {"received": 12.34},
        "store_url": "embedded:./<store>",
    }
    return ServerStatus(**{**fields, **changes})  # pyright: ignore[reportArgumentType]


def test_the_figures_are_there() -> None:
    page = render_status(status(), refresh_s=5)

    assert "2,468" in page
    assert "12.3" in page
    assert "50.0 MiB" in page
    assert "All is well." in page
    assert 'content="5"' in page


def test_party_streams_are_not_counted_as_user_agents() -> None:
    presence = WorkerStatus(
        name="presence.0",
        roles=("presence",),
        pid=8,
        started_at_ms=0,
        reported_at_ms=1,
        connections=55,
    )
    page = render_status(status(workers=(*status().workers, presence)), refresh_s=0)

    assert "<dt>user agents connected</dt><dd>2,468</dd>" in page
    assert "<dt>party streams open</dt><dd>55</dd>" in page


def test_troubles_are_named() -> None:
    page = render_status(status(store_ok=False, missing=("push.1",)), refresh_s=0)

    assert "the store does not answer; process push.1 does not answer" in page
    assert "refresh" not in page


def test_nothing_reaches_the_page_unescaped() -> None:
    page = render_status(status(addresses=(("a<b>", "ws://x/<y>"),)), refresh_s=0)

    assert "<store>" not in page
    assert "<b>" not in page
    assert "<y>" not in page


@pytest.mark.parametrize(
    "count, text", [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 40, "5.0 TiB")]
)
def test_sizes_are_for_people(count: int, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(
    "ms, text",
    [(0, "0 s"), (-5, "0 s"), (61_000, "1 min 1 s"), (90_061_000, "1 d 1 h"), (3_600_000, "1 h")],
)
def test_durations_are_for_people(ms: int, text: str) -> None:
    assert duration(ms) == text
