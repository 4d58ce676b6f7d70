"""Capabilities of a backend; suites and start-up checks use them instead of its name."""

import msgspec


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """Properties of one backend beyond the common contract."""

    name: str  # as in its URL; shown to users, never used for decisions

    durable: bool
    """Acknowledged writes survive the end of the process."""

    power_safe: bool
    """Acknowledged writes survive a loss of power."""

    shared_by_processes: bool
    """Several processes of one machine may open the store at once."""

    shared_by_machines: bool
    """Several machines may open the store at once. A node id must then be reachable from other
    machines."""

    native_expiry: bool
    """The backend expires rows by its own clock, which tests cannot control."""

    row_versions: bool
    """Records have a version; a claim is refused if the row has changed since it was read."""

    cursor: bool = False
    """The layout has Autopush's cursor, which Waystation updates for Autopush's nodes."""

    clears_with_channel: bool
    """Notifications are removed with their channel; other backends only hide them."""
