"""Events for the pipeline, metrics for dashboards, and log lines."""
