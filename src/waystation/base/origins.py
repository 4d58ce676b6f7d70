"""Where a connection comes from, as limits count it: an address, or the network of one household.

An IPv6 customer has a whole /48 at most, so its addresses are one origin; IPv4 addresses are one
each. Clients behind one router are one origin either way: limits by origin have to be generous.
"""

import ipaddress
from collections import Counter
from typing import Final

UNKNOWN: Final = ""  # not over IP, such as a Unix socket
_IPV6_BITS: Final = 48


def origin_of(address: object) -> str:
    """By what `socket.accept` says of the other end."""
    host = address[0] if isinstance(address, tuple) and address else UNKNOWN  # pyright: ignore[reportUnknownVariableType]
    if not isinstance(host, str):
        return UNKNOWN
    try:
        ip = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return UNKNOWN
    if ip.version == 4:
        return str(ip)
    if ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped)
    return str(ipaddress.ip_network((ip, _IPV6_BITS), strict=False).network_address)


class OriginLimit:
    """How many connections each origin may have at once; 0 is as many as it likes."""

    __slots__ = ("_counts", "_limit")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._counts: Counter[str] = Counter()

    def has_room(self, origin: str) -> bool:
        return not self._limit or origin == UNKNOWN or self._counts[origin] < self._limit

    def enter(self, origin: str) -> None:
        if self._limit:
            self._counts[origin] += 1

    def leave(self, origin: str) -> None:
        if self._limit:
            self._counts[origin] -= 1
            if not self._counts[origin]:
                del self._counts[origin]

    def __len__(self) -> int:
        return len(self._counts)
