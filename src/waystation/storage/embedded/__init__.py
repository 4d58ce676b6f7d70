"""LMDB on one disk, shared by all worker processes of a machine."""
