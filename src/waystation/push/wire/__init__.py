"""Codecs of push: bytes to typed values and back, without I/O."""
