"""One module per job: it plans its input, calls a transform, and commits."""
