"""The queue cluster: owners of slots, moves and replication while messages flow."""
