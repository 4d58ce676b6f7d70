"""Divides the file descriptors of a process among user agents, app servers and its own files.

The soft limit is raised to the hard limit. User agents, app servers and the rest (store, journal,
logs, relay) get a share each; a connection beyond its share is answered 503. Without shares, idle
user agents could use all descriptors, and the kernel would reset every POST.
"""

import contextlib
import resource
from collections.abc import Collection

import msgspec

LIMIT_MAX = 1_048_576  # some systems allow a billion; tables grow with the limit
REST_MIN = 32
REST_MAX = 1024
APP_SERVERS_MAX = 16_384
PASSING_MAX = 4096
PASSING_MIN = 128  # a burst comes in before its requests do


class Shares(msgspec.Struct, frozen=True):
    """Sockets at a time, in one process."""

    user_agents: int
    app_servers: int
    nodes: int = 0  # of the rest: connections at internal ports

    @staticmethod
    def of(limit: int, roles: Collection[str]) -> "Shares":
        rest = max(REST_MIN, min(limit // 16, REST_MAX))
        ours = max(limit - rest, 2)
        if "connect" not in roles:
            return Shares(0, ours, rest // 2)
        if "endpoint" not in roles:
            return Shares(ours, 0, rest // 2)
        app_servers = min(limit // 8, APP_SERVERS_MAX)
        return Shares(max(ours - app_servers, 1), app_servers, rest // 2)


def raise_limit() -> int:
    """Raise the soft limit and return it: the descriptors that this process may have open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = LIMIT_MAX if hard == resource.RLIM_INFINITY else min(hard, LIMIT_MAX)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted if soft == resource.RLIM_INFINITY else soft
    with contextlib.suppress(OSError, ValueError):  # a container may forbid it: keep the soft limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft


def within(share: int, setting: int) -> int:
    """The smaller of share and setting; a setting of 0 is unset."""
    return min(setting, share) if setting else share


def passing_max(share: int) -> int:
    """How many sockets of a share may be in the handshake, or closing."""
    return min(max(share // 48, min(PASSING_MIN, share // 6), 1), PASSING_MAX)
