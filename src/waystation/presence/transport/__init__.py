"""How bytes of streams come and go: one interface, and what implements it."""
