"""Sources of frames other than the lake: segments of the event log, Kafka, stores."""
