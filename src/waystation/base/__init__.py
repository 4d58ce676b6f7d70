"""Time, ids, limits, settings and tasks; imports nothing else of the platform."""
