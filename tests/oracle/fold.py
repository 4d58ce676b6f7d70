"""The milestones of messages, folded one event at a time."""

from collections.abc import Iterable, Mapping
from typing import Any

from waystation.telemetry.contract import TERMINAL

VIAS = {"webpush": 0, "fcm": 1, "apns": 2, "adm": 3, "stub": 4, "simplepush": 5}
FIRST = {
    "t0": {0},
    "t_store": {1},
    "t_get": {2},
    "t_fwd": {3, 5},
    "t_sent": {6},
    "t_acc": {7},
    "t_term": TERMINAL,
    "t_done": {8},
}
COLUMNS = (
    *("mid", "last", "seen", "t0", "t_store", "t_get", "t_fwd", "t_sent", "t_acc", "t_term"),
    *("t_done", "ttl", "size", "app", "via", "path", "topic"),
)


def fold(events: Iterable[Mapping[str, Any]]) -> dict[str, tuple[Any, ...]]:
    """mid -> its row, in the order of COLUMNS."""
    states: dict[str, dict[str, Any]] = {}
    for event in events:
        mid, k, ts = event["mid"], event["k"], event["ts"]
        if mid is None or not 0 <= k <= 14:
            continue
        state = states.setdefault(mid, dict.fromkeys(COLUMNS) | {"mid": mid, "seen": 0})
        state["seen"] |= 1 << k
        greatest(state, "last", ts * 32 + k)
        first = {0: "t0", 1: "t_store", 2: "t_get", 3: "t_fwd", 5: "t_fwd", 6: "t_sent", 7: "t_acc"}
        for name in (
            first.get(k),
            "t_term" if k in TERMINAL else None,
            "t_done" if k == 8 else None,
        ):
            if name is not None and (state[name] is None or ts < state[name]):
                state[name] = ts
        if k == 0:
            greatest(state, "ttl", event["ttl"])
            greatest(state, "size", event["size"])
        if k == 1:
            greatest(state, "topic", event["flag"])
        greatest(state, "app", event["app"])
        greatest(state, "path", event["path"])
        if event["via"] is not None:
            greatest(state, "via", VIAS.get(event["via"], 99))
    return {mid: tuple(state[name] for name in COLUMNS) for mid, state in states.items()}


def greatest(state: dict[str, Any], name: str, value: Any) -> None:
    if value is not None and (state[name] is None or value > state[name]):
        state[name] = value
