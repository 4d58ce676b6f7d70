"""Two stores as one, for the time of a move from the secondary to the primary."""
