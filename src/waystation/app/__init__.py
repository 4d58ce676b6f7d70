"""The only place that wires: settings, composition, processes, health."""
