"""Who may look at the console, and who may publish.

Rule 1: tokens are compared in constant time.
Rule 2: this machine needs no token, but only when it speaks for itself: a request that came
        through a proxy, or under a host name that is not this machine's own, is a stranger's.
Rule 3: a publisher's token counts for its broadcaster alone; `*` counts for all.
"""

import base64
import binascii
import hmac
from collections.abc import Mapping
from ipaddress import ip_address

from .model import Tokens

_FORWARDED = ("x-forwarded-for", "x-forwarded-host", "x-real-ip", "forwarded", "via")
ANY_BROADCASTER = "*"


def bearer(headers: Mapping[str, str]) -> str:
    """The token of `Authorization: Bearer …`, or the password of `Basic …` for browsers."""
    scheme, _, rest = headers.get("authorization", "").partition(" ")
    match scheme.lower():
        case "bearer":
            return rest.strip()
        case "basic":
            try:
                return base64.b64decode(rest).decode().partition(":")[2]
            except (binascii.Error, UnicodeDecodeError):
                return ""
        case _:
            return ""


def same(given: str, wanted: str) -> bool:
    return bool(wanted) and hmac.compare_digest(given.encode(), wanted.encode())


def is_operator(tokens: Tokens, headers: Mapping[str, str], peer: str) -> bool:
    return same(bearer(headers), tokens.operator) or _is_this_machine(headers, peer)


def may_read_broadcasts(tokens: Tokens, headers: Mapping[str, str]) -> bool:
    given = bearer(headers)
    return same(given, tokens.reader) or same(given, tokens.operator)


def may_publish(tokens: Tokens, headers: Mapping[str, str], broadcaster: str) -> bool:
    given = bearer(headers)
    own = tokens.publishers.get(broadcaster, "")
    return same(given, own) or same(given, tokens.publishers.get(ANY_BROADCASTER, ""))


def is_known(tokens: Tokens, headers: Mapping[str, str]) -> bool:
    """Whether the token is anybody's: decides between 401 and 403."""
    given = bearer(headers)
    return any(
        same(given, token)
        for token in (tokens.operator, tokens.reader, *tokens.publishers.values())
    )


def _is_this_machine(headers: Mapping[str, str], peer: str) -> bool:
    if any(name in headers for name in _FORWARDED):
        return False
    host = headers.get("host", "").strip()
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return _is_loopback(peer) and (name == "localhost" or _is_loopback(name))


def _is_loopback(address: str) -> bool:
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None)
    return parsed.is_loopback or (mapped is not None and mapped.is_loopback)
