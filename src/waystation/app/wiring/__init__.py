"""Wiring: builds the processes of each role from settings, stores, sockets and tasks."""
