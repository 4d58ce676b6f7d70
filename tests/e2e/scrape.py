"""Numbers of a running server, from `/metrics` on its relay port."""

import re
from urllib.request import urlopen

from tests.e2e.platform import Autoconnect, Serve

LINE = re.compile(r"^(?P<name>\w+)(?:\{(?P<labels>[^}]*)\})? (?P<value>\S+)")


def sample(server: Serve | Autoconnect, name: str, **labels: str) -> float:
    """The sum over all series of that name which have these labels; 0 if there is none.

    A counter is found with or without its `_total`.
    """
    with urlopen(f"{server.relay_url}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    total = 0.0
    for line in text.splitlines():
        found = LINE.match(line)
        if found is None or found["name"].removesuffix("_total") != name:
            continue
        has = dict(re.findall(r'(\w+)="([^"]*)"', found["labels"] or ""))
        if labels.items() <= has.items():
            total += float(found["value"])
    return total
