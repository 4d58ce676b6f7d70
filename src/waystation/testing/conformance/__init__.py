"""Conformance suites for backends."""
