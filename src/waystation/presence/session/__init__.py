"""One client's session: its stream, its requests, what it was sent, how it begins and ends."""
