"""The lean transport: HTTP/2 and gRPC's framing of our own, on uvloop."""
