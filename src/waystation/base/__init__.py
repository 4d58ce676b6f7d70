"""Ground floor: time, ids, limits, settings and tasks; knows nothing of the platform."""
