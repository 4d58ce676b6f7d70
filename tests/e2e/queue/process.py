"""A queue server in a process of its own."""

import abc
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal

from tests.e2e.platform import Process
from tests.e2e.queue.run_worker import READY
from tests.ports import free_ports
from waystation.queue.identity import Identity, ensure_identity
from waystation.queue.server.tls import OPENSSL_CONF


class LoneWorker(Process):
    """A worker without its supervisor; a restart keeps ports, identity and data."""

    role: ClassVar[Literal["queue", "edge"]]

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        super().__init__([], {"OPENSSL_CONF": str(OPENSSL_CONF)})

    @abc.abstractmethod
    def sections(self) -> Mapping[str, Mapping[str, object]]:
        """What its settings say, as of the next start."""

    def start(self) -> None:
        config = json.dumps({"data_dir": str(self.data_dir), **self.sections()})
        self._command = [sys.executable, "-m", "tests.e2e.queue.run_worker", self.role, config]
        self.out.clear()
        super().start()

    def is_ready(self) -> bool:
        return READY in self.out

    @property
    def identity(self) -> Identity:
        return ensure_identity(self.data_dir / "keys" / "queue", host="")


class QueueServer(LoneWorker):
    """`settings` are those of `Queue`."""

    role = "queue"

    def __init__(self, data_dir: Path, *, store_url: str = "", **settings: object) -> None:
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
        super().__init__(data_dir)

    def change(self, **settings: object) -> None:
        """From the next start on."""
        self.settings |= settings

    def sections(self) -> Mapping[str, Mapping[str, object]]:
        return {"queue": self.settings, "store": {"map_bytes": 1 << 30}}
