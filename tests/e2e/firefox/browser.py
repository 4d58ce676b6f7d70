"""A headless Firefox that a test steers over WebDriver BiDi.

Rule 1: the browser asks nobody on the network but the page and the push server of the test.
Rule 2: a profile outlives its process, so that a restarted browser is the same user agent.
Rule 3: what was started is ended: `close` kills the process group.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.sync.client import ClientConnection, connect

START_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 20.0

Prefs = Mapping[str, str | int | bool]

PREFS: Prefs = {
    "dom.push.testing.allowInsecureServerURL": True,
    # A remote protocol switches push off unless this stands in user.js.
    "dom.push.connection.enabled": True,
    "alerts.useSystemBackend": False,  # notifications without a desktop
    "network.proxy.type": 0,
    "network.manage-offline-status": False,
    # Nothing in the background: updates, studies, telemetry, lists, probes.
    "app.normandy.enabled": False,
    "app.update.disabledForTesting": True,
    "browser.aboutwelcome.enabled": False,
    "browser.ml.enable": False,
    "browser.newtabpage.enabled": False,
    "browser.region.network.url": "",
    "browser.region.update.enabled": False,
    "browser.safebrowsing.blockedURIs.enabled": False,
    "browser.safebrowsing.downloads.enabled": False,
    "browser.safebrowsing.malware.enabled": False,
    "browser.safebrowsing.phishing.enabled": False,
    "browser.sessionstore.resume_from_crash": False,
    "browser.shell.checkDefaultBrowser": False,
    "browser.startup.homepage_override.mstone": "ignore",
    "browser.topsites.contile.enabled": False,
    "datareporting.healthreport.uploadEnabled": False,
    "datareporting.policy.dataSubmissionEnabled": False,
    "extensions.getAddons.cache.enabled": False,
    "extensions.systemAddon.update.enabled": False,
    "extensions.update.enabled": False,
    "media.gmp-manager.updateEnabled": False,
    "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False,
    "network.http.speculative-parallel-limit": 0,
    "network.trr.mode": 5,
    "security.OCSP.enabled": 0,
    "security.remote_settings.crlite_filters.enabled": False,
    "security.remote_settings.intermediates.enabled": False,
    "services.settings.server": "data:,#remote-settings-dummy/v1",
    "termsofuse.bypassNotification": True,
    "toolkit.startup.max_resumed_crashes": -1,
    "toolkit.telemetry.server": "",
}


class BrowserError(Exception):
    """The browser did not start, or refused what it was asked."""


class Firefox:
    """One profile, and at most one process on it."""

    def __init__(self, profile: Path, *, push_url: str, port: int, **prefs: str | int | bool):
        """`prefs` are names with `__` in the place of dots."""
        self.profile = profile
        self.prefs = {name.replace("__", "."): value for name, value in prefs.items()}
        self.prefs["dom.push.serverURL"] = push_url
        self._port = port
        self._child: subprocess.Popen[bytes] | None = None
        self._socket: ClientConnection | None = None
        self._open = contextlib.ExitStack()
        self._asked = 0
        self._tab = ""
        profile.mkdir(parents=True, exist_ok=True)

    def trust(self, ca_pem: Path) -> None:
        """Before the first start: servers of this CA are believed."""
        database = f"sql:{self.profile}"
        for command in (
            ["certutil", "-N", "-d", database, "--empty-password"],
            ["certutil", "-A", "-d", database, "-n", "test", "-t", "C,,", "-i", str(ca_pem)],
        ):
            subprocess.run(command, check=True, capture_output=True, timeout=30)

    def start(self) -> None:
        assert self._child is None
        lines = [
            f"user_pref({json.dumps(name)}, {json.dumps(value)});\n"
            for name, value in {**PREFS, **self.prefs}.items()
        ]
        (self.profile / "user.js").write_text("".join(lines))
        program = shutil.which("firefox-esr") or shutil.which("firefox")
        if program is None:
            raise BrowserError("Firefox is not installed; SKIP=firefox leaves these tests out")
        self._child = subprocess.Popen(
            [
                program,
                "--headless",
                "--no-remote",
                *("--profile", str(self.profile)),
                *("--remote-debugging-port", str(self._port)),
                "about:blank",
            ],
            env={
                **os.environ,
                "HOME": str(self.profile),
                "MOZ_CRASHREPORTER_DISABLE": "1",
                "MOZ_REMOTE_SETTINGS_DEVTOOLS": "1",  # or it asks its own settings service
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._socket = self._connect()
        self.command("session.new", capabilities={})
        self._tab = self.command("browsingContext.getTree")["contexts"][0]["context"]

    def _connect(self) -> ClientConnection:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            assert self._child is not None
            try:
                return self._open.enter_context(
                    connect(
                        f"ws://127.0.0.1:{self._port}/session",
                        max_size=None,
                        compression=None,
                        proxy=None,
                        ping_interval=None,
                        close_timeout=1,
                    )
                )
            except (OSError, InvalidHandshake):
                if self._child.poll() is not None or time.monotonic() > deadline:
                    self.kill()
                    raise BrowserError("Firefox did not start") from None
                time.sleep(0.1)

    def command(self, method: str, **params: Any) -> dict[str, Any]:
        assert self._socket is not None
        self._asked += 1
        self._socket.send(json.dumps({"id": self._asked, "method": method, "params": params}))
        while True:
            answer = json.loads(self._socket.recv(timeout=ANSWER_TIMEOUT_S))
            if answer.get("id") == self._asked:
                break
        if answer["type"] == "error":
            raise BrowserError(f"{method}: {answer['error']}: {answer['message']}")
        return answer["result"]

    def allow_notifications(self, origin: str, state: str = "granted") -> None:
        self.command(
            "permissions.setPermission",
            descriptor={"name": "notifications"},
            state=state,
            origin=origin,
        )

    def visit(self, url: str) -> None:
        self.command("browsingContext.navigate", context=self._tab, url=url, wait="complete")

    def call(self, expression: str) -> Any:
        """The value of an expression in the page, which may be a promise; JSON both ways."""
        result = self.command(
            "script.evaluate",
            awaitPromise=True,
            userActivation=True,
            expression=f"(async () => JSON.stringify(await ({expression})) ?? 'null')()",
            target={"context": self._tab},
        )
        if result["type"] != "success":
            raise BrowserError(result["exceptionDetails"]["text"])
        return json.loads(result["result"]["value"])

    def stop(self) -> None:
        """As a person ends it."""
        with contextlib.suppress(BrowserError, ConnectionClosed, TimeoutError):
            self.command("browser.close")
        assert self._child is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(STOP_TIMEOUT_S)
        self.kill()

    def kill(self) -> None:
        """`kill -9`; the profile stays."""
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait(10)
            self._child = None
        self._open.close()
        self._socket = None

    def close(self) -> None:
        self.kill()
