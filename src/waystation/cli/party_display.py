"""Output of `waystation party join`: a live table, lines, or JSON."""

import time
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol, Self

from .terminal import pass_on, say

if TYPE_CHECKING:
    from waystation.client.party.model import Event, Participant

RECENT_MAX = 8
SHOWN_MAX = 200  # rows of the table


class Screen(Protocol):
    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...

    def show(self, event: "Event", participants: "tuple[Participant, ...]") -> None: ...


def sentence(event: "Event") -> str:
    """The event as a sentence."""
    from waystation.client.party import model
    from waystation.client.party.error_actions import code_name

    match event:
        case model.Snapshot(participants):
            return f"joined; {_count(len(participants))} here"
        case model.Resynced(participants):
            return f"caught up; {_count(len(participants))} here"
        case model.Joined(who, sessions):
            more = "" if sessions <= 1 else f" ({sessions} sessions now)"
            return f"client {who.client_id} has joined{more}"
        case model.Left(who, reason, sessions):
            why = "" if reason == 0 else f" ({code_name(reason).lower().replace('_', ' ')})"
            more = "" if sessions == 0 else f", {sessions} sessions left"
            return f"client {who.client_id} has left{why}{more}"
        case model.Reachability(who, attached):
            return f"client {who.client_id} {'is back' if attached else 'has lost its connection'}"
        case model.Signalled(who, payload):
            return f"client {who.client_id} signals {payload!r}"
        case model.ContinuityLost():
            return "away for too long: the party has removed you"
        case model.StateChanged(state):
            return state.value
        case model.TokenRefused():
            return "the broker refused the new token"


def _count(number: int) -> str:
    return "nobody else" if number == 0 else f"{number} {'other' if number == 1 else 'others'}"


class Lines:
    """For a terminal that is none: a line for each thing that happens."""

    def __init__(self, title: str) -> None:
        self._title = title

    def __enter__(self) -> Self:
        pass_on(self._title)
        return self

    def __exit__(self, *exc: object) -> None:
        say("left")

    def show(self, event: "Event", participants: "tuple[Participant, ...]") -> None:
        pass_on(sentence(event))


class Json:
    """For programs."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None: ...

    def show(self, event: "Event", participants: "tuple[Participant, ...]") -> None:
        import msgspec

        line: dict[str, Any] = {
            "event": type(event).__name__.lower(),
            **msgspec.to_builtins(event, str_keys=True),
            # Beyond 2^53 many readers of JSON lose digits.
            "present": [[str(one.client_id), str(one.session_id)] for one in participants],
        }
        if "who" in line:
            line["who"] = {name: str(value) for name, value in line["who"].items()}
        line.pop("participants", None)
        pass_on(msgspec.json.encode(line).decode())


class Live:
    """For people: who is there, and what happened last."""

    def __init__(self, title: str) -> None:
        from rich.live import Live as RichLive

        self._title = title
        self._recent: deque[str] = deque(maxlen=RECENT_MAX)
        self._away: set[Participant] = set()
        self._since: dict[Participant, str] = {}
        self._live = RichLive(refresh_per_second=8, transient=False)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._live.__exit__(None, None, None)

    def show(self, event: "Event", participants: "tuple[Participant, ...]") -> None:
        from waystation.client.party import model

        clock = time.strftime("%H:%M:%S")
        if isinstance(event, model.Reachability):
            (self._away.discard if event.attached else self._away.add)(event.who)
        self._away &= set(participants)
        self._since = {one: self._since.get(one, clock) for one in participants}
        self._recent.append(f"{clock}  {sentence(event)}")
        self._live.update(self._picture(participants))

    def _picture(self, participants: "tuple[Participant, ...]") -> Any:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(title=self._title, title_justify="left", expand=False)
        for name in ("client", "session", "seen since", ""):
            table.add_column(name)
        for one in participants[:SHOWN_MAX]:
            state = "connection lost" if one in self._away else ""
            table.add_row(
                str(one.client_id), f"{one.session_id:016x}", self._since.get(one, ""), state
            )
        hidden = len(participants) - SHOWN_MAX
        if hidden > 0:
            table.add_row(f"and {hidden} more", "", "", "")
        return Group(table, Text("\n".join(self._recent), style="dim"), Text("Ctrl-C leaves"))
