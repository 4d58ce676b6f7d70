"""Where frames come from besides the lake: segments of the event log, stores."""
