"""A dual store: two push stores used as one while user agents move to the primary."""
