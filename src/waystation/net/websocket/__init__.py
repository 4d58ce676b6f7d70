"""WebSocket (RFC 6455): the server of the user agents' connections."""
