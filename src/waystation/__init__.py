"""Waystation carries small messages to devices that are sometimes there and sometimes not."""
