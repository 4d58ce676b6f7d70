"""Parses ids of parties, clients and sessions: a number, or a name."""

import hashlib

from .terminal import EXIT_USAGE, give_up

IDS_END = 1 << 64


def party_number(text: str, what: str) -> int:
    """A 64-bit id: the given number, or a hash of the given name."""
    try:
        number = int(text, 0)
    except ValueError:
        if not text.strip():
            give_up(f"{what} is empty", EXIT_USAGE)
        number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") or 1
    if not 0 < number < IDS_END:
        give_up(f"{what} {text!r} is out of range: 1 to 2^64 - 1, or a name", EXIT_USAGE)
    return number
