"""Capabilities of a backend; suites and start-up checks use them instead of its name."""

import msgspec


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What one backend promises beyond the contract of all."""

    name: str  # as in its URL; for tables and messages, never for decisions

    durable: bool
    """What was acknowledged survives the end of the process."""

    power_safe: bool
    """What was acknowledged survives a loss of power."""

    shared_by_processes: bool
    """Several processes of one machine may have it open at once."""

    shared_by_machines: bool
    """Several machines may; a node id that only this machine can reach is an error then."""

    native_expiry: bool
    """The backend expires rows by its own clock, which tests cannot move."""

    row_versions: bool
    """Records carry a version, and a claim is refused unless the row is the one that was read."""

    cursor: bool = False
    """Its layout has Autopush's cursor, which we keep up for Autopush's nodes."""

    clears_with_channel: bool
    """Notifications are removed with their channel; elsewhere they only become invisible."""
