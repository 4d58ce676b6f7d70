"""HTTP/1.1: requests to a handler, answers back."""
