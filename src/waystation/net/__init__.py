"""Sockets and byte framing: the only code that owns them; it knows no service."""
