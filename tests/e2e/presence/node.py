"""A presence node as a process of its own, with small times for tests."""

from collections.abc import Mapping
from pathlib import Path

from tests.e2e.platform import Process, clean_environment, variables
from tests.ports import free_ports


class Node(Process):
    """One node on a data directory of its own, or on a store that several share."""

    def __init__(self, data_dir: Path, **settings: object) -> None:
        import sys

        base = free_ports(3)
        self.data_dir = data_dir
        self.port = base
        self.ops_port = base + 2
        given: Mapping[str, object] = {
            "data_dir": data_dir,
            "presence__port": base,
            "presence__peer_port": base + 1,
            "presence__ops_port": base + 2,
            **{f"presence__{name}": value for name, value in settings.items()},
        }
        self._given = given
        env = {**clean_environment(), **variables("WAYSTATION_", given)}
        super().__init__([sys.executable, "-m", "benchmarks.presence_node"], env)

    def setting(self, name: str) -> str:
        return str(self._given[name])

    def start(self) -> None:
        self.out.clear()
        super().start()

    def is_ready(self) -> bool:
        return "ready" in self.out

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"
