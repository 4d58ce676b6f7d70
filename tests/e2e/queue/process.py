"""A queue server in a process of its own."""

import json
import sys
from pathlib import Path

from tests.e2e.platform import Process
from tests.e2e.queue.run_server import READY
from tests.ports import free_ports
from waystation.queue.identity import Identity, ensure_identity
from waystation.queue.server.carrier import OPENSSL_CONF


class QueueServer(Process):
    """`settings` are those of `Queue`; a restart keeps ports, identity and data."""

    def __init__(self, data_dir: Path, *, store_url: str = "", **settings: object) -> None:
        self.data_dir = data_dir
        base = free_ports(4)
        self.port = base
        self.ops_port = base + 1
        self.control_port = base + 2
        self.link_port = base + 3
        self.settings: dict[str, object] = {
            "port": self.port,
            "ops_port": self.ops_port,
            "control_port": self.control_port,
            "link_port": self.link_port,
            "drain_s": 0.1,
            "ntf_interval_s": 0.05,
            "proxy_private_hosts": True,  # all servers of a test are on loopback
            "identity_algorithm": "ed25519",  # quicker to make, and to check in each handshake
            **settings,
        }
        if store_url:
            self.settings["store"] = store_url
        super().__init__([], {"OPENSSL_CONF": str(OPENSSL_CONF)})

    def change(self, **settings: object) -> None:
        """From the next start on."""
        self.settings |= settings

    def start(self) -> None:
        config = json.dumps(
            {
                "data_dir": str(self.data_dir),
                "queue": self.settings,
                "store": {"map_bytes": 1 << 30},
            }
        )
        self._command = [sys.executable, "-m", "tests.e2e.queue.run_server", config]
        self.out.clear()
        super().start()

    def is_ready(self) -> bool:
        return READY in self.out

    @property
    def identity(self) -> Identity:
        return ensure_identity(self.data_dir / "keys" / "queue", host="")
