"""The edge: the front of a queue cluster, many storage servers under one address."""
