"""The example that the tutorial shows with Firefox."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.firefox.browser import Firefox

pytestmark = [pytest.mark.e2e, pytest.mark.firefox]

SCRIPT = Path(__file__).resolve().parents[3] / "examples" / "notify_a_browser" / "run.py"


def test_a_browser_is_notified(browser: Firefox) -> None:
    site = subprocess.Popen([sys.executable, SCRIPT, "0"], stdout=subprocess.PIPE, text=True)
    try:
        assert site.stdout is not None
        address = site.stdout.readline().split()[-1]
        browser.allow_notifications(address.rstrip("/"))
        browser.visit(address)
        browser.call("subscribe()")
        site.wait(30)
        said = site.stdout.read().splitlines()
    finally:
        site.kill()
        site.wait()
        if site.stdout is not None:
            site.stdout.close()

    assert site.returncode == 0
    assert said[0].startswith("subscribed: http://127.0.0.1:")
    assert {"sent: 201", "shown: hello from your own server"} == set(said[1:])
