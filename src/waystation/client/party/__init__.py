"""A participant of a party: joins, is told who comes and goes, and survives broken connections."""
