"""HTTP/2 (RFC 9113) and gRPC's framing: streams of messages to a handler."""
