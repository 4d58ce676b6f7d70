"""One module a job: it plans, has a transform computed, and commits."""
