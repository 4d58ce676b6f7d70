"""Spark jobs over the event log and the stores: outcome of every message, load, audits, reports."""
