"""Decodes and encodes the messages of the client and the cluster protocol."""
