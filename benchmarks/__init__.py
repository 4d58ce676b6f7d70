"""How fast, measured: load for any server of this protocol. See `python -m benchmarks --help`."""
