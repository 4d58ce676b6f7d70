"""Names of the PostgreSQL tables, and statements with these names filled in."""

from waystation.storage.postgres.url import PostgresUrl

# Tables that Autopush does not have; one installation per schema.
OWN = ("update", "broadcast", "status", "tracked", "counted", "migration")


class Tables:
    """Fills `{router}` and the like in a statement with table names and common expressions."""

    def __init__(self, url: PostgresUrl) -> None:
        self.schema = url.schema
        self.router = self._named(url.router_table)
        self.message = self._named(url.message_table)
        self.meta = self._named(url.meta_table)
        self.reliability = self._named(url.reliability_table)
        self.migration = self._named("waystation_migration")
        own = {name: self._named(f"waystation_{name}") for name in OWN}
        names = {
            "router": self.router,
            "message": self.message,
            "meta": self.meta,
            "reliability": self.reliability,
            "message_name": url.message_table,
            "router_name": url.router_table,
            "add_channel": self._named("waystation_add_channel"),
            "save_update": self._named("waystation_save_update"),
            "lifetime_s": str(url.max_router_ttl_s),
        }
        # Rows of Autopush's first releases have no `expiry`.
        end = f"COALESCE(r.expiry, r.connected_at / 1000 + {url.max_router_ttl_s})"
        # Nodes of earlier releases write only `version`; the time then belongs to another version.
        time = "CASE WHEN u.accepted_version = u.version THEN u.accepted_at_ms END"
        self._phrases = names | own | {"router_end": end, "update_time": time}

    def _named(self, name: str) -> str:
        return f'"{name}"' if self.schema is None else f'"{self.schema}"."{name}"'

    def fill(self, statement: str) -> str:
        for name, phrase in self._phrases.items():
            statement = statement.replace("{" + name + "}", phrase)
        return statement
