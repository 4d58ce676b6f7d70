"""Stores in the memory of one process, for tests and trials."""
