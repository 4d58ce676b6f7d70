"""Tools for tests of Waystation and of its backends: simulated time, faults, conformance suites."""
