"""What tests of Waystation, and of code built on it, need: time, networks, faults, suites."""
