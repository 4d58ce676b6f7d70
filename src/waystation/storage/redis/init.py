"""`waystation store init` for Redis, and warnings about a Redis that may lose data.

Only `init_store` scans all keys, once, to add the rows of Autopush's nodes to the sweep's indexes.
"""

import asyncio
from collections.abc import Sequence

from waystation.base.clock import Clock, SystemClock
from waystation.base.errors import StoreUnavailableError
from waystation.base.ids import parse_uuid
from waystation.push.model import Uaid
from waystation.storage.redis import scripts
from waystation.storage.redis.cluster_routing import RedisCluster
from waystation.storage.redis.connection import Reply
from waystation.storage.redis.layout import Keys
from waystation.storage.redis.session import OneServer, Session
from waystation.storage.redis.url import RedisUrl, parse_redis_url
from waystation.storage.settings import Store

VERSION_MIN = (7, 0)  # PEXPIRETIME; Valkey's versions start at 7.2

_KEYS_PER_SCAN = 1000


async def durability_warnings(session: Session) -> list[str]:
    warnings: list[str] = []
    for text in await session.run_everywhere(("INFO", "persistence")):
        if _info(text).get("aof_enabled") == "0":
            warnings.append(
                "Redis runs without appendonly: accepted notifications are lost when it stops or"
                " crashes. Set `appendonly yes` (and `appendfsync always` to survive a loss of"
                " power)"
            )
            break
    for text in await session.run_everywhere(("INFO", "memory")):
        policy = _info(text).get("maxmemory_policy", "noeviction")
        if policy != "noeviction":
            warnings.append(
                f"Redis evicts keys when its memory is full (maxmemory-policy {policy}):"
                " it may delete notifications. Set `maxmemory-policy noeviction`"
            )
            break
    return warnings


def _info(text: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in text.decode("utf-8", "replace").splitlines())
    return {name: value for name, colon, value in lines if colon}


async def init_store(url: str, settings: Store, *, clock: Clock | None = None) -> list[str]:
    """Create what is missing; returns a sentence for each change. May run repeatedly and while
    servers, also Autopush's, use the store."""
    parsed = parse_redis_url(url, settings.db_settings)
    session = _session(parsed, settings)
    keys = Keys(cluster=parsed.cluster)
    try:
        done = [await _check_version(session)]
        adopted = 0
        if not parsed.cluster:  # Autopush does not support clusters
            adopted = await _adopt(session, keys, (clock or SystemClock()).now_ms())
        done.append(
            f"added {adopted} user agents of Autopush to the sweep's index"
            if adopted
            else "all user agents were in the sweep's index"
        )
        done += [f"warning: {warning}" for warning in await durability_warnings(session)]
        return done
    finally:
        await session.close()


def _session(url: RedisUrl, settings: Store) -> Session:
    return RedisCluster(url, settings) if url.cluster else OneServer(url, settings)


async def _check_version(session: Session) -> str:
    named = ""
    for text in await session.run_everywhere(("INFO", "server")):
        info = _info(text)
        # Valkey reports both names; `redis_version` is the version it is compatible with.
        version = info.get("redis_version", "0.0")
        major, minor = (int(part) for part in version.split(".")[:2])
        if (major, minor) < VERSION_MIN:
            wanted = ".".join(map(str, VERSION_MIN))
            raise StoreUnavailableError(f"Redis {version} is too old: use {wanted} or later")
        valkey = info.get("valkey_version")
        named = f"Valkey {valkey}" if valkey else f"Redis {version}"
    return f"{named} needs no tables"


async def _adopt(session: Session, keys: Keys, now_ms: int) -> int:
    adopted = 0
    for pattern in ("autopush/user/*", "autopush/msgs_exp/*", "autopush/channels/*"):
        cursor = b"0"
        while True:
            scan = ("SCAN", cursor, "MATCH", pattern, "COUNT", _KEYS_PER_SCAN)
            cursor, found = (await session.run("", (scan,)))[0]
            adopted += sum(await asyncio.gather(*_adoptions(session, keys, found, now_ms)))
            if cursor == b"0":
                break
    return adopted


def _adoptions(session: Session, keys: Keys, found: Sequence[bytes], now_ms: int) -> list[Reply]:
    raws = (parse_uuid(key.rpartition(b"/")[2].decode("ascii", "replace")) for key in found)
    agents = [keys.agent(Uaid(raw)) for raw in raws if raw is not None]
    return [
        session.run_script(scripts.ADOPT, (keys.user(agent),), agent, now_ms) for agent in agents
    ]
