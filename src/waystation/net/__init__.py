"""Sockets and byte framing of all protocols; imports no service."""
