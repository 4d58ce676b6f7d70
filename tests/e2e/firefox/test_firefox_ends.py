"""What Firefox does when a subscription, a connection, the browser or the server ends."""

import asyncio
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.firefox.app_servers import AppServer, Subscription
from tests.e2e.firefox.browser import Firefox
from tests.e2e.firefox.conftest import (
    PING_INTERVAL_MS,
    channel_of,
    open_site,
    reconnected,
    subscribe,
)
from tests.e2e.firefox.page import Site
from tests.e2e.firefox.tap import BROWSER, SERVER, Message, Tap
from tests.e2e.platform import BIN, Serve, clean_environment, until
from tests.e2e.wire_clients import UserAgent
from tests.ports import free_ports

pytestmark = [pytest.mark.e2e, pytest.mark.firefox]


def test_unsubscribing_is_gone_for_the_app_server(
    browser: Firefox, tap: Tap, app_server: AppServer, subscription: Subscription, name: str
) -> None:
    channel_id = channel_of(tap, subscription)
    sent = app_server.send(subscription, "while it lasts")
    assert tap.wait_ack(sent.version) == 100

    assert browser.call(f"unsubscribe({name!r})") is True
    assert tap.wait(BROWSER, "unregister", channelID=channel_id)["code"] == 200
    assert tap.wait(SERVER, "unregister", channelID=channel_id)["status"] == 200
    assert app_server.post(subscription, b"").error == (410, 106)


@pytest.mark.soak  # a browser without subscriptions is in no hurry to come back
def test_a_browser_without_subscriptions_is_given_a_new_uaid_each_time_and_not_stored(
    tmp_path: Path, push_server: Serve, site: Site
) -> None:
    def user_agents() -> str:
        """How many user agents the store knows; other rows come and go with other tests."""
        command = [BIN / "waystation", "store", "check", "--data-dir", push_server.data_dir]
        run = subprocess.run(
            command, env=clean_environment(), capture_output=True, text=True, check=True
        )
        return next(line for line in run.stdout.splitlines() if line.split()[:1] == ["agents"])

    before = user_agents()
    with Tap(push_server.addresses["ports"]["connect.port"]) as tap:
        firefox = Firefox(
            tmp_path / "fresh",
            push_url=tap.url,
            port=free_ports(1),
            dom__push__retryBaseInterval=50,
        )
        try:
            open_site(firefox, site)
            reconnected(tap, 0)
            mark = tap.mark
            tap.cut()
            reconnected(tap, mark)
        finally:
            firefox.close()
        hellos, answers = tap.seen(BROWSER, "hello"), tap.seen(SERVER, "hello")

    assert len(hellos) == len(answers) == 2
    assert all("uaid" not in hello and hello["use_webpush"] is True for hello in hellos)
    assert answers[0]["uaid"] != answers[1]["uaid"]
    assert user_agents() == before


def test_a_hello_without_a_uaid_keeps_the_browser_away(
    browser: Firefox, tap: Tap, app_server: AppServer, subscription: Subscription, name: str
) -> None:
    """So we never send one; it comes back when it must register."""

    def nameless(speaker: str, message: Message) -> Message:
        if (speaker, message.get("messageType")) == (SERVER, "hello"):
            return {**message, "uaid": ""}
        return message

    tap.rule = nameless
    before = tap.mark
    tap.cut()
    reconnected(tap, before)
    tap.rule = None
    mark = tap.mark
    time.sleep(PING_INTERVAL_MS / 1000 + 1)

    assert not tap.seen(BROWSER, "hello", since=mark)
    assert subscribe(browser, f"{name}-again")
    assert tap.wait_ack(app_server.send(subscription, "back").version) == 100


@pytest.fixture
def other_site(browser: Firefox, site: Site) -> Iterator[str]:
    """The browser shows another site, of whose subscriptions no other test knows."""
    browser.allow_notifications(site.other_origin)
    browser.visit(site.other_origin)
    yield site.other_origin
    browser.visit(site.origin)


def test_a_permission_withdrawn_unsubscribes(
    browser: Firefox, tap: Tap, other_site: str, app_server: AppServer, name: str
) -> None:
    subscription = subscribe(browser, name, app_server.vapid.key)
    channel_id = channel_of(tap, subscription)
    browser.allow_notifications(other_site, "denied")

    assert tap.wait(BROWSER, "unregister", channelID=channel_id)["code"] == 202
    assert tap.wait(SERVER, "unregister", channelID=channel_id)["status"] == 200
    assert app_server.post(subscription, b"").error == (410, 106)


@pytest.mark.usefixtures("other_site")
def test_too_many_pushes_without_a_notification_unsubscribe(
    browser: Firefox, tap: Tap, site: Site, app_server: AppServer, name: str
) -> None:
    """The browser's quota is 16, and counts only while the site is in no tab."""
    before = tap.mark
    subscription = subscribe(browser, name, app_server.vapid.key)
    channel_id = channel_of(tap, subscription)
    browser.visit("about:blank")
    for number in range(1, 18):
        app_server.send(subscription, f"quiet {number}")
        site.wait(name, count=min(number, 16))
        if tap.seen(BROWSER, "unregister", since=before):
            break

    assert tap.wait(BROWSER, "unregister", channelID=channel_id)["code"] == 201
    assert tap.wait(SERVER, "unregister", channelID=channel_id)["status"] == 200


def test_what_came_meanwhile_arrives_in_order_after_a_restart_of_the_browser(
    *,
    browser: Firefox,
    tap: Tap,
    site: Site,
    app_server: AppServer,
    subscription: Subscription,
    name: str,
) -> None:
    """Topics first, and of a topic only the last. The order is that of the server's frames: Firefox
    decrypts concurrently, so its acks and the worker's events may overtake one another."""
    assert tap.wait_ack(app_server.send(subscription, "before").version) == 100
    site.wait(name)
    browser.stop()
    texts = [f"plain {number}" for number in range(12)]  # more than one batch
    plain = [app_server.send(subscription, text) for text in texts]
    app_server.send(subscription, "replaced", topic="news")
    last = app_server.send(subscription, "the last news", topic="news")
    before = tap.mark
    open_site(browser, site)
    hello = reconnected(tap, before)
    site.wait(name, count=14)

    assert hello["uaid"]
    assert sorted(map(str, site.texts(name))) == sorted(["before", "the last news", *texts])
    expected = [last.version, *(one.version for one in plain)]
    channel_id = channel_of(tap, subscription)
    frames = tap.seen(SERVER, "notification", since=before)
    assert [one["version"] for one in frames if one["channelID"] == channel_id] == expected
    assert {tap.wait_ack(version, since=before) for version in expected} == {100}
    until(lambda: app_server.state(plain[-1]) == "delivered")


def test_what_was_sent_while_the_browser_was_killed_comes_with_the_next_start(
    *,
    browser: Firefox,
    tap: Tap,
    site: Site,
    app_server: AppServer,
    subscription: Subscription,
    name: str,
) -> None:
    assert tap.wait_ack(app_server.send(subscription, "before").version) == 100
    site.wait(name)

    def swallow(speaker: str, message: Message) -> Message | None:
        is_push = speaker == SERVER and message.get("messageType") == "notification"
        return None if is_push else message

    tap.rule = swallow
    sent = app_server.send(subscription, "into the void")
    tap.wait(SERVER, "notification", version=sent.version)
    browser.kill()
    tap.rule = None
    before = tap.mark
    open_site(browser, site)

    assert tap.wait_ack(sent.version, since=before) == 100
    assert site.wait(name, count=2)[1]["text"] == "into the void"


@pytest.mark.parametrize("end", ["SIGTERM", "kill -9"])
def test_a_subscription_outlives_the_server(
    *,
    tap: Tap,
    site: Site,
    push_server: Serve,
    app_server: AppServer,
    subscription: Subscription,
    name: str,
    end: str,
) -> None:
    assert tap.wait_ack(app_server.send(subscription, "before").version) == 100
    site.wait(name)
    before = tap.mark
    if end == "SIGTERM":
        assert push_server.stop() == 0
        assert tap.wait(SERVER, "close", since=before)["close"] == 1012
    else:
        push_server.kill()
    push_server.start()
    hello = reconnected(tap, before)
    sent = app_server.send(subscription, "after")

    assert hello["uaid"] == tap.wait(SERVER, "hello", since=before)["uaid"]
    assert tap.wait_ack(sent.version, since=before) == 100
    assert site.wait(name, count=2)[1]["text"] == "after"


def test_a_push_to_a_browser_that_is_away_for_a_moment_comes_when_it_is_back(
    tap: Tap, site: Site, app_server: AppServer, subscription: Subscription, name: str
) -> None:
    tap.refusing = True
    tap.cut()
    before = tap.mark
    sent = app_server.send(subscription, "for later")
    tap.refusing = False

    reconnected(tap, before)
    assert tap.wait_ack(sent.version, since=before) == 100
    assert site.wait(name)[0]["text"] == "for later"


def test_a_close_of_ours_ends_the_stream_and_the_browser_comes_back(
    tap: Tap, push_server: Serve, app_server: AppServer, subscription: Subscription
) -> None:
    """It never answers a Close, so nobody waits for that: here somebody else takes its uaid."""
    tap.wait_ack(app_server.send(subscription, "before").version)
    uaid = tap.seen(SERVER, "hello")[-1]["uaid"]
    before = tap.mark

    async def take_over() -> None:
        async with UserAgent(push_server.ws_url) as other:
            other.uaid = uaid
            await other.connect()
            await other.leave()

    asyncio.run(take_over())
    tap.wait(SERVER, "close", since=before)
    tap.wait(SERVER, "end", since=before)
    closed, ended = (tap.times(SERVER, kind, since=before)[0] for kind in ("close", "end"))

    assert ended - closed < 2.0
    assert not tap.seen(BROWSER, "close", since=before)
    assert reconnected(tap, before)["uaid"] == uaid
    assert tap.wait_ack(app_server.send(subscription, "after").version) == 100


@pytest.mark.parametrize("code", [1000, 1001, 1011, 1012])
def test_after_any_other_close_the_browser_comes_back(
    tap: Tap, app_server: AppServer, subscription: Subscription, code: int
) -> None:
    before = tap.mark
    tap.close_browser(code)

    reconnected(tap, before)
    assert not tap.seen(BROWSER, "close", since=before)
    assert tap.wait_ack(app_server.send(subscription, f"after {code}").version) == 100


def test_a_ping_without_an_answer_makes_the_browser_connect_again(
    tap: Tap, app_server: AppServer, subscription: Subscription
) -> None:
    def deaf(speaker: str, message: Message) -> Message | None:
        return None if (speaker, message) == (SERVER, {}) else message

    tap.rule = deaf
    before = tap.mark
    tap.wait(BROWSER, "{}", since=before)
    reconnected(tap, before)
    tap.rule = None

    assert tap.wait_ack(app_server.send(subscription, "heard").version) == 100


def test_after_4774_the_browser_stays_away_until_it_must_register(
    browser: Firefox, tap: Tap, site: Site, app_server: AppServer, subscription: Subscription
) -> None:
    assert tap.wait_ack(app_server.send(subscription, "before").version) == 100
    before = tap.mark
    tap.close_browser(4774)
    time.sleep(PING_INTERVAL_MS / 1000 + 1)

    assert not tap.seen(BROWSER, "hello", since=before)
    assert subscribe(browser, f"{subscription['endpoint'][-8:]}")
    assert tap.seen(BROWSER, "hello", since=before)


def test_an_unknown_uaid_makes_the_page_subscribe_again(
    *,
    browser: Firefox,
    tap: Tap,
    site: Site,
    app_server: AppServer,
    subscription: Subscription,
    name: str,
) -> None:
    """As after 60 days: ours answers with another uaid, and the browser drops all it had."""

    def forget(speaker: str, message: Message) -> Message:
        if (speaker, message.get("messageType")) == (BROWSER, "hello"):
            return {**message, "uaid": "0f1e2d3c4b5a469788796a5b4c3d2e1f"}
        return message

    assert tap.wait_ack(app_server.send(subscription, "before").version) == 100
    tap.rule = forget
    before = tap.mark
    tap.cut()
    hello = reconnected(tap, before)
    tap.rule = None

    assert tap.seen(SERVER, "hello", since=before)[0]["uaid"] != hello["uaid"]
    assert site.wait(name, "change")[0]["renewed"] is False
    assert browser.call(f"subscription({name!r})") is None
    again = subscribe(browser, name, app_server.vapid.key)
    sent = app_server.send(again, "after")
    assert tap.wait_ack(sent.version) == 100
    assert site.wait(name, count=2)[1]["text"] == "after"
