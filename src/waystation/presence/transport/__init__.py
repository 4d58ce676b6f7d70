"""The node as a server: its ports and gRPC services."""
