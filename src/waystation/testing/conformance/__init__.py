"""Suites that every backend passes unchanged."""
