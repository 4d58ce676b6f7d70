"""What happened to every message: Spark jobs over the event log and the stores."""
