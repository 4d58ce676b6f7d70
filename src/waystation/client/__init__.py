"""Client libraries: what talks to Waystation from the other end."""
