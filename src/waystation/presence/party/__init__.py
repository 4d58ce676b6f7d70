"""Parties as a node follows them: log, participants, announcements."""
