"""One server, one site and one browser for all tests of Firefox over ws://."""

import itertools
import json
import time
from collections.abc import Iterator
from urllib.request import Request, urlopen

import pytest

from tests.e2e.firefox.app_servers import AppServer, Subscription
from tests.e2e.firefox.browser import Firefox
from tests.e2e.firefox.page import Site
from tests.e2e.firefox.tap import BROWSER, SERVER, Message, Tap
from tests.e2e.platform import Serve
from tests.ports import free_ports

BROADCAST = "remote-settings/monitor_changes"  # the one that Firefox listens to
BROADCAST_MODULE = "resource://services-settings/remote-settings.sys.mjs"
PING_INTERVAL_MS = 3000  # half an hour by default; also the longest wait before a reconnect


@pytest.fixture(scope="package")
def push_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    with Serve(
        tmp_path_factory.mktemp("push"),
        workers=2,
        connect__min_ping_interval_s=0.5,
        connect__auto_ping_interval_s=2.0,
        connect__megaphone_poll_interval_s=0.2,
    ) as serve:
        publish(serve, BROADCAST, "v1")
        time.sleep(1.0)  # a few polls
        yield serve


@pytest.fixture(scope="package")
def site() -> Iterator[Site]:
    with Site() as site:
        yield site


@pytest.fixture(scope="package")
def tap(push_server: Serve) -> Iterator[Tap]:
    with Tap(push_server.addresses["ports"]["connect.port"]) as tap:
        yield tap


@pytest.fixture(autouse=True)
def _as_every_test_finds_it(request: pytest.FixtureRequest) -> Iterator[None]:
    """The browser shows the site, and the tap has no rule."""
    if "browser" in request.fixturenames:
        firefox: Firefox = request.getfixturevalue("browser")
        site: Site = request.getfixturevalue("site")
        if firefox.call("location.origin") != site.origin:
            firefox.visit(site.origin)
    yield
    if "tap" in request.fixturenames:
        tap: Tap = request.getfixturevalue("tap")
        tap.rule, tap.refusing = None, False


@pytest.fixture(scope="package")
def browser(tmp_path_factory: pytest.TempPathFactory, tap: Tap, site: Site) -> Iterator[Firefox]:
    firefox = Firefox(
        tmp_path_factory.mktemp("firefox"),
        push_url=tap.url,
        port=free_ports(1),
        dom__push__retryBaseInterval=200,
        dom__push__pingInterval=PING_INTERVAL_MS,
        dom__push__requestTimeout=3000,
    )
    # It would ask for its broadcast half a minute after the start; one that it knew before is in
    # its first hello.
    handler = {"moduleURI": BROADCAST_MODULE, "symbolName": "remoteSettingsBroadcastHandler"}
    listeners = {BROADCAST: {"version": "v0", "sourceInfo": handler}}
    known = {"version": 1, "listeners": listeners}
    (firefox.profile / "broadcast-listeners.json").write_text(json.dumps(known))
    try:
        open_site(firefox, site)
        yield firefox
    finally:
        firefox.close()


def open_site(firefox: Firefox, site: Site) -> None:
    """Start the browser and let it show the page."""
    firefox.start()
    firefox.allow_notifications(site.origin)
    firefox.visit(site.origin)


_names = itertools.count(1)


@pytest.fixture
def name() -> str:
    """Of a registration that no other test has."""
    return f"r{next(_names)}"


@pytest.fixture(scope="package")
def app_server() -> AppServer:
    return AppServer()


@pytest.fixture
def subscription(browser: Firefox, app_server: AppServer, name: str) -> Subscription:
    """Of the registration `name`, bound to the key of `app_server`."""
    return subscribe(browser, name, app_server.vapid.key)


def subscribe(browser: Firefox, name: str, key: str = "") -> Subscription:
    found = browser.call(f"subscribe({name!r}, {key!r})")
    assert "endpoint" in found, found
    return found


def channel_of(tap: Tap, subscription: Subscription) -> str:
    reply = tap.wait(SERVER, "register", pushEndpoint=subscription["endpoint"])
    return reply["channelID"]


def reconnected(tap: Tap, since: int) -> Message:
    """The hello of a connection that was opened after `since`, once it has been answered."""
    hello = tap.wait(BROWSER, "hello", since=since)
    tap.wait(SERVER, "hello", since=since)
    return hello


def publish(server: Serve, broadcast_id: str, version: str) -> None:
    request = Request(
        f"{server.console_url}/v1/broadcasts/{broadcast_id}",
        data=version.encode(),
        method="PUT",
        headers={"Authorization": f"Bearer {server.publisher_token}"},
    )
    with urlopen(request, timeout=5) as answer:
        assert answer.status in (200, 201)
