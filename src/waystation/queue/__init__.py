"""Simplex message queues: the SimpleX Messaging Protocol, versions 8 to 18."""
