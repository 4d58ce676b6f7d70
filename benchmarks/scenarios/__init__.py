"""One module a scenario: `run(target, scale)` measures, `load(job, phases)` is its load process."""
