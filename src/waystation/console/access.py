"""Who may look at the console, and who may publish.

Rule 1: tokens are compared in constant time.
Rule 2: this machine needs no token, but only when it speaks for itself: a request that came
        through a proxy, or under a host name that is not this machine's own, is a stranger's.
Rule 3: a publisher's token counts for its broadcaster alone; `*` counts for all.
"""

import base64
import hmac
from collections.abc import Mapping
from ipaddress import ip_address

from .model import Tokens

_FORWARDED = (b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip", b"forwarded", b"via")
ANY_BROADCASTER = "*"


def bearer(headers: Mapping[bytes, bytes]) -> bytes:
    """The token of `Authorization: Bearer …`, or the password of `Basic …` for browsers."""
    scheme, _, rest = headers.get(b"authorization", b"").partition(b" ")
    match scheme.lower():
        case b"bearer":
            return rest.strip()
        case b"basic":
            try:
                return base64.b64decode(rest).partition(b":")[2]
            except ValueError:  # not base64
                return b""
        case _:
            return b""


def same(given: bytes, wanted: str) -> bool:
    return bool(wanted) and hmac.compare_digest(given, wanted.encode())


def is_operator(tokens: Tokens, headers: Mapping[bytes, bytes], peer: str) -> bool:
    return same(bearer(headers), tokens.operator) or _is_this_machine(headers, peer)


def may_read_broadcasts(tokens: Tokens, headers: Mapping[bytes, bytes]) -> bool:
    given = bearer(headers)
    return same(given, tokens.reader) or same(given, tokens.operator)


def may_publish(tokens: Tokens, headers: Mapping[bytes, bytes], broadcaster: str) -> bool:
    given = bearer(headers)
    own = tokens.publishers.get(broadcaster, "")
    return same(given, own) or same(given, tokens.publishers.get(ANY_BROADCASTER, ""))


def is_known(tokens: Tokens, headers: Mapping[bytes, bytes]) -> bool:
    """Whether the token is anybody's: decides between 401 and 403."""
    given = bearer(headers)
    return any(
        same(given, token)
        for token in (tokens.operator, tokens.reader, *tokens.publishers.values())
    )


def _is_this_machine(headers: Mapping[bytes, bytes], peer: str) -> bool:
    if any(name in headers for name in _FORWARDED):
        return False
    host = headers.get(b"host", b"").decode("latin-1").strip()
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return _is_loopback(peer) and (name == "localhost" or _is_loopback(name))


def _is_loopback(address: str) -> bool:
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None)
    return parsed.is_loopback or (mapped is not None and mapped.is_loopback)
