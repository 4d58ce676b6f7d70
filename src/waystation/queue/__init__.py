"""Simplex message queues: the SimpleX Messaging Protocol, server side."""
