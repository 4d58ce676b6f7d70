"""The push store on PostgreSQL, in the tables of autopush-rs (docs/storage/postgres.md)."""
