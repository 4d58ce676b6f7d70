"""Limits connections per client address: each IPv4 address, each IPv6 /48.

An IPv6 customer gets at most a /48, so its addresses count as one origin. Clients behind one router
share an origin either way, so these limits must be generous.
"""

import ipaddress
from collections import Counter
from typing import Final

UNKNOWN: Final = ""  # not over IP, such as a Unix socket
_IPV6_BITS: Final = 48


def origin_of(address: object) -> str:
    """The origin of a peer address as `socket.accept` returns it."""
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


class AddressLimit:
    """Limits the connections of each origin; 0 is unlimited."""

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
