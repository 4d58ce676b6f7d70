"""Presence: tells the participants of a party who joins and leaves, in order, at least once."""
