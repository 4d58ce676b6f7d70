"""The queue cluster: who owns which slot, and how slots move while messages flow."""
