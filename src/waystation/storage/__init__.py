"""Backends: each implements the stores that the services ask for."""
