"""Bytes to typed values and back; nothing here opens a socket."""
