"""The endpoint node: a POST, step by step."""
