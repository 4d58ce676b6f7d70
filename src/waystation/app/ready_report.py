"""Output of `waystation serve` once all its processes are ready.

stdout gets the table of addresses, the settings that Firefox needs, and the line `waystation is
ready`. Programs read the same from `run/serve.json`. Log lines go to stderr.
"""

import os
from collections.abc import Callable

import msgspec

from waystation.queue.address import IDENTITY_FOLDER, address_card, own_address

from .addresses import listening
from .data_dir import DataDir
from .roles import Role
from .server_info import ListenAddress, ServerInfo, write_server_info
from .settings import Settings, is_loopback, is_loopback_host
from .version import build

READY_LINE = "waystation is ready"


class ReadyReport:
    def __init__(
        self,
        data: DataDir,
        settings: Settings,
        roles: tuple[Role, ...],
        ports: dict[str, int],
        *,
        say: Callable[[str], None],
    ) -> None:
        self._data = data
        self._settings = settings
        self._roles = roles
        self._ports = ports
        self._say = say
        self._said = False
        self._first_queue = not (data.keys / IDENTITY_FOLDER).exists()

    def ready(self) -> None:
        """Write serve.json, then print once. Raises if the file cannot be written; a repeated
        call only writes the file."""
        serving = self._serving()
        try:
            write_server_info(self._data, serving)
        finally:
            if not self._said:
                self._said = True
                self._say_all(serving)

    def _say_all(self, serving: ServerInfo) -> None:
        self._say(render_table(serving.listening))
        if "connect" in self._roles:
            self._say(firefox_settings(self._settings))
        if address := serving.queue_address:
            shown = address_card(address) if self._first_queue else address
            self._say(f"Queue server address\n  {shown}")
        self._say(READY_LINE)

    def _serving(self) -> ServerInfo:
        settings, roles = self._settings, self._roles
        table = listening(settings, roles)
        return ServerInfo(
            pid=os.getpid(),
            version=build().version,
            roles=roles,
            workers=settings.worker_count,
            connect_url=settings.connect.url if "connect" in roles else "",
            relay_url=settings.connect.relay_url if "connect" in roles else "",
            endpoint_url=settings.endpoint.url if "endpoint" in roles else "",
            console_url=next((row.url for row in table if row.setting == "console.port"), ""),
            queue_address=self._queue_address(),
            ports=self._ports,
            listening=table,
        )

    def _queue_address(self) -> str:
        """The address of the queue server, whose process has made the identity by now. In a
        cluster clients connect to the edge, so its port is shown."""
        queue = self._settings.queue
        if "edge" in self._roles:
            queue = msgspec.structs.replace(queue, port=self._settings.edge.port)
        elif "queue" not in self._roles or self._settings.in_cluster:
            return ""
        return own_address(self._data.keys, queue, self._settings.host)


def render_table(rows: tuple[ListenAddress, ...]) -> str:
    width = max(len(row.what) for row in rows)
    reach = max(len(row.url) for row in rows)
    lines = [f"  {row.what:<{width}}  {row.url:<{reach}}  {row.setting}" for row in rows]
    return "\n".join(["Listening", *lines])


def firefox_settings(settings: Settings) -> str:
    """The about:config preferences with which Firefox uses this server."""
    prefs = [("dom.push.serverURL", settings.connect.url)]
    if settings.connect.url.startswith("ws:"):
        prefs.append(("dom.push.testing.allowInsecureServerURL", "true"))
    prefs.append(("dom.push.userAgentID", "(reset it once, then restart)"))
    width = max(len(name) for name, _ in prefs)
    lines = ["Firefox, in about:config", *(f"  {n:<{width}}  {v}" for n, v in prefs)]
    if is_loopback(settings.connect.url) and not is_loopback_host(settings.host):
        lines.append("  This address works on this machine only: set connect.url for others.")
    return "\n".join(lines)
