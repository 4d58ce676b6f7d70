"""Limits on the messages of one user agent."""

from typing import Final

NO_PING_YET: Final = -1.0


def ping_allowed(last_mono: float, mono: float, *, min_interval_s: float) -> bool:
    """Whether a client ping is at least `min_interval_s` after the last one (webpush §4.1)."""
    return last_mono < 0 or mono - last_mono >= min_interval_s
