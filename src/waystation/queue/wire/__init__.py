"""Bytes and typed values of the SimpleX Messaging Protocol, both ways and without I/O."""
