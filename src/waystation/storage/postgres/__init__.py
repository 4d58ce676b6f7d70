"""The push store on PostgreSQL, in the tables of autopush-rs (docs/guides/stores/postgres.md)."""
