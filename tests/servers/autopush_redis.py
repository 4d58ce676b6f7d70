"""What a node of autopush-rs does to Redis, command by command: its neighbour in a mixed cluster.

Written from the layout that docs/guides/stores/redis.md records; nothing of ours is used.
"""

import json
import subprocess
from typing import Any
from urllib.parse import urlsplit

ROUTER_TTL_S = 60 * 86_400


class AutopushNode:
    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._cli = ["redis-cli", "--raw", "-h", "127.0.0.1", "-p", str(parts.port)]
        self._cli += ["-n", parts.path.strip("/")]

    def redis(self, *words: str | int) -> str:
        command = [*self._cli, *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
        return done.stdout.removesuffix("\n")

    def lines(self, *words: str | int) -> list[str]:
        return self.redis(*words).splitlines()

    # Users

    def add_user(self, uaid: str, user: dict[str, Any], *, now_ms: int) -> None:
        self.redis("SET", f"autopush/co/{uaid}", now_ms, "EX", ROUTER_TTL_S)
        self.redis("SET", f"autopush/user/{uaid}", json.dumps(user), "EX", ROUTER_TTL_S)

    def update_user(self, uaid: str, user: dict[str, Any], *, now_ms: int) -> bool:
        last = self.redis("GET", f"autopush/co/{uaid}")
        if not last or int(last) >= user["connected_at"]:
            return False
        self.add_user(uaid, user, now_ms=now_ms)
        return True

    def get_user(self, uaid: str) -> dict[str, Any] | None:
        """None, too, for a record without the fields that it requires."""
        text = self.redis("GET", f"autopush/user/{uaid}")
        user: dict[str, Any] = json.loads(text) if text else {}
        required = {"uaid": str, "connected_at": int, "router_type": str, "priv_channels": list}
        fine = all(isinstance(user.get(name), kind) for name, kind in required.items())
        return user if fine else None

    def remove_user(self, uaid: str) -> None:
        """The bodies of its messages stay until they expire."""
        for kind in ("user", "co", "channels", "msgs", "msgs_exp", "timestamp"):
            self.redis("DEL", f"autopush/{kind}/{uaid}")

    def add_channel(self, uaid: str, channel_id: str) -> None:
        self.redis("RPUSH", f"autopush/channels/{uaid}", channel_id)

    def remove_channel(self, uaid: str, channel_id: str) -> bool:
        return self.redis("LREM", f"autopush/channels/{uaid}", 1, channel_id) != "0"

    def channels(self, uaid: str) -> set[str]:
        return set(self.lines("LRANGE", f"autopush/channels/{uaid}", 0, -1))

    # Messages

    def save(self, uaid: str, sort_key: str, message: dict[str, Any], *, now_s: int) -> None:
        ends_s = now_s + message["ttl"]
        body = f"autopush/msg/{uaid}/{sort_key}"
        self.redis("SET", body, json.dumps(message), "EXAT", ends_s)
        self.redis("ZADD", f"autopush/msgs_exp/{uaid}", ends_s, sort_key)
        self.redis("ZADD", f"autopush/msgs/{uaid}", now_s, sort_key)

    def fetch(self, uaid: str, *, cursor_s: int = 0) -> list[dict[str, Any]]:
        """The messages as it would send them, each with the key under which it would delete it."""
        keys = self.lines("ZRANGEBYSCORE", f"autopush/msgs/{uaid}", cursor_s, "+inf")
        found: list[dict[str, Any]] = []
        for key in keys:
            text = self.redis("GET", f"autopush/msg/{uaid}/{key}")
            if not text:
                continue
            row = json.loads(text)
            topic, at_ms = row.get("topic"), row.get("sortkey_timestamp")
            own_key = (
                f"01:{row['channelID']}:{topic}" if topic else f"02:{at_ms}:{row['channelID']}"
            )
            found.append(row | {"key": own_key})
        return found

    def remove(self, uaid: str, sort_key: str) -> None:
        self.redis("DEL", f"autopush/msg/{uaid}/{sort_key}")
        self.redis("ZREM", f"autopush/msgs/{uaid}", sort_key)
        self.redis("ZREM", f"autopush/msgs_exp/{uaid}", sort_key)
