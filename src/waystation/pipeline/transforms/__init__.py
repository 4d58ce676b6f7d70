"""Frames to frames: what the jobs compute, without reading or writing anything."""
