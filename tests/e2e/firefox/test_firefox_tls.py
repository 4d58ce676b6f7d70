"""Firefox over wss://, and senders over https://, with a private authority."""

from collections.abc import Iterator

import pytest

from tests.authority import Issued, issue
from tests.e2e.firefox.app_servers import AppServer, NodeAppServer
from tests.e2e.firefox.browser import Firefox
from tests.e2e.firefox.conftest import open_site
from tests.e2e.firefox.page import Site
from tests.e2e.platform import Serve, until
from tests.e2e.wire_clients import Vapid
from tests.ports import free_ports

pytestmark = [pytest.mark.e2e, pytest.mark.firefox]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Issued:
    return issue(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def tls_server(tmp_path_factory: pytest.TempPathFactory, certificates: Issued) -> Iterator[Serve]:
    with Serve(
        tmp_path_factory.mktemp("tls"),
        workers=2,
        tls__cert=certificates.cert,
        tls__key=certificates.key,
    ) as serve:
        yield serve


@pytest.fixture(scope="module")
def tls_browser(
    tmp_path_factory: pytest.TempPathFactory,
    tls_server: Serve,
    certificates: Issued,
    site: Site,
) -> Iterator[Firefox]:
    firefox = Firefox(
        tmp_path_factory.mktemp("firefox"),
        push_url=tls_server.ws_url,
        port=free_ports(1),
        dom__push__testing__allowInsecureServerURL=False,
        dom__push__retryBaseInterval=200,
        dom__push__pingInterval=3000,
    )
    firefox.trust(certificates.ca)
    try:
        open_site(firefox, site)
        yield firefox
    finally:
        firefox.close()


def subscribe(browser: Firefox, name: str, vapid: Vapid) -> dict[str, str]:
    found = browser.call(f"subscribe({name!r}, {vapid.key!r})")
    assert found["endpoint"].startswith("https://"), found
    return found


@pytest.mark.parametrize("encoding", ["aes128gcm", "aesgcm"])
def test_a_push_of_pywebpush_arrives_over_tls(
    tls_browser: Firefox, site: Site, certificates: Issued, name: str, encoding: str
) -> None:
    app_server = AppServer(ca=certificates.ca)
    subscription = subscribe(tls_browser, name, app_server.vapid)
    sent = app_server.send(subscription, f"{encoding} over TLS", encoding=encoding)

    assert sent.status == 201
    assert site.wait(name)[0]["text"] == f"{encoding} over TLS"
    until(lambda: app_server.state(sent) == "delivered")


@pytest.mark.node
@pytest.mark.parametrize("encoding", ["aes128gcm", "aesgcm"])
def test_a_push_of_web_push_arrives_over_tls(
    tls_browser: Firefox, site: Site, certificates: Issued, name: str, encoding: str
) -> None:
    app_server = NodeAppServer(certificates.ca)
    subscription = subscribe(tls_browser, name, app_server.vapid)
    run = app_server.send(subscription, f"{encoding} from Node", encoding=encoding)

    assert run.returncode == 0, run
    assert site.wait(name)[0]["text"] == f"{encoding} from Node"


def test_a_subscription_over_tls_outlives_a_restart_of_server_and_browser(
    tls_server: Serve,
    tls_browser: Firefox,
    site: Site,
    certificates: Issued,
    name: str,
) -> None:
    app_server = AppServer(ca=certificates.ca)
    subscription = subscribe(tls_browser, name, app_server.vapid)
    tls_browser.stop()
    tls_server.restart()
    sent = app_server.send(subscription, "after both")
    open_site(tls_browser, site)

    assert site.wait(name)[0]["text"] == "after both"
    until(lambda: app_server.state(sent) == "delivered")
