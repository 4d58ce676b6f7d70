"""Facts for the pipeline, numbers for dashboards, lines for people."""
