"""Everything in this process's memory; for tests and for trying things out."""
