"""Events for the pipeline, metrics for dashboards, log lines for people."""
