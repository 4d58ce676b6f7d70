"""Presence: who is in the party, in order, at least once, across broken connections."""
