"""The report: one HTML page with tables and charts."""
