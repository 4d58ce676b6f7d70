"""Firefox as a user agent, over ws://: every line of what it does that can be provoked."""

import time

import pytest

from tests.e2e.firefox.app_servers import AppServer, Subscription
from tests.e2e.firefox.browser import Firefox
from tests.e2e.firefox.conftest import (
    BROADCAST,
    PING_INTERVAL_MS,
    channel_of,
    publish,
    reconnected,
    subscribe,
)
from tests.e2e.firefox.page import Site
from tests.e2e.firefox.tap import BROWSER, SERVER, Message, Tap
from tests.e2e.platform import Serve, until
from tests.e2e.scrape import sample
from tests.e2e.wire_clients import new_channel

pytestmark = [pytest.mark.e2e, pytest.mark.firefox]


# --- subscribing and receiving ------------------------------------------------------------------


def test_a_page_subscribes_with_a_key(
    browser: Firefox, tap: Tap, site: Site, app_server: AppServer, name: str
) -> None:
    before = tap.mark
    subscription = subscribe(browser, name, app_server.vapid.key)
    sent = app_server.send(subscription, "for a key")

    assert "/wpush/v2/" in subscription["endpoint"]
    assert tap.wait(BROWSER, "register", since=before)["key"].endswith("=")
    assert sent.status == 201
    assert site.wait(name)[0]["text"] == "for a key"


def test_a_page_subscribes_without_a_key(
    browser: Firefox, tap: Tap, site: Site, app_server: AppServer, name: str
) -> None:
    before = tap.mark
    subscription = subscribe(browser, name)
    answer = app_server.send(subscription, "for anybody")

    assert "/wpush/v1/" in subscription["endpoint"]
    assert "key" not in tap.wait(BROWSER, "register", since=before)
    assert answer.status == 201
    assert site.wait(name)[0]["text"] == "for anybody"


@pytest.mark.parametrize("encoding", ["aes128gcm", "aesgcm"])
def test_a_push_of_pywebpush_is_received_and_acked(
    *,
    tap: Tap,
    site: Site,
    app_server: AppServer,
    subscription: Subscription,
    name: str,
    encoding: str,
) -> None:
    sent = app_server.send(subscription, f"in {encoding}", encoding=encoding)

    assert site.wait(name)[0]["text"] == f"in {encoding}"
    assert tap.wait(SERVER, "notification", version=sent.version)["headers"]["encoding"] == encoding
    assert tap.wait_ack(sent.version) == 100
    until(lambda: app_server.state(sent) == "delivered")


def test_a_long_push_is_received(
    tap: Tap, site: Site, app_server: AppServer, subscription: Subscription, name: str
) -> None:
    """5.5 KB, more than one record."""
    text = "".join(f"{number:05d}" for number in range(1080))
    sent = app_server.send(subscription, text)

    assert site.wait(name)[0]["text"] == text
    assert tap.wait_ack(sent.version) == 100


def test_a_push_without_data_is_received(
    tap: Tap, site: Site, app_server: AppServer, subscription: Subscription, name: str
) -> None:
    before = tap.mark
    answer = app_server.post(subscription, b"")
    notification = tap.wait(SERVER, "notification", since=before)

    assert answer.status == 201
    assert site.wait(name)[0]["text"] is None
    assert notification.keys() == {"messageType", "channelID", "version"}
    assert tap.wait_ack(notification["version"]) == 100


def test_what_cannot_be_decrypted_is_acked_all_the_same(
    tap: Tap, site: Site, app_server: AppServer, subscription: Subscription, name: str
) -> None:
    before = tap.mark
    answer = app_server.post(subscription, b"nobody ever encrypted this, and it is long enough" * 3)
    version = tap.wait(SERVER, "notification", since=before)["version"]

    assert answer.status == 201
    assert tap.wait_ack(version) == 101
    sent = app_server.send(subscription, "the next one")
    assert tap.wait_ack(sent.version) == 100
    assert site.wait(name)[0]["text"] == "the next one"


# --- what the browser refuses, and what a server may say ----------------------------------------


def test_the_same_version_again_is_acked_as_not_delivered(
    tap: Tap, site: Site, app_server: AppServer, subscription: Subscription, name: str
) -> None:
    sent = app_server.send(subscription, "only once")
    site.wait(name)
    notification = tap.wait(SERVER, "notification", version=sent.version)
    before = tap.mark
    tap.say(notification)

    assert tap.wait_ack(sent.version, since=before) == 102
    assert site.texts(name) == ["only once"]
    assert tap.connected


@pytest.mark.parametrize("spelling", ["upper case", "undashed", "another"])
def test_a_channel_that_it_does_not_know_by_that_spelling_is_acked_as_not_delivered(
    tap: Tap, app_server: AppServer, subscription: Subscription, spelling: str
) -> None:
    """So a server echoes a channel id byte for byte, and takes such an ack for an ack."""
    sent = app_server.send(subscription, "under its name")
    assert tap.wait_ack(sent.version) == 100
    known = channel_of(tap, subscription)
    channel_id = {
        "upper case": known.upper(),
        "undashed": known.replace("-", ""),
        "another": new_channel(),
    }[spelling]
    version = f"strange-{time.monotonic_ns()}"
    tap.say({"messageType": "notification", "channelID": channel_id, "version": version})

    assert tap.wait_ack(version) == 102
    assert tap.wait_ack(app_server.send(subscription, "still here").version) == 100


def test_a_numeric_version_comes_back_as_a_number(
    tap: Tap, site: Site, app_server: AppServer, subscription: Subscription, name: str
) -> None:
    """From another server; ours does not mind the ack of a version that it never gave."""
    channel_id = channel_of(tap, subscription)
    tap.say(
        {"messageType": "notification", "channelID": channel_id, "version": 7, "extra": {"a": 1}}
    )

    assert site.wait(name)[0]["text"] is None
    assert tap.wait_ack(7) == 100
    assert tap.wait_ack(app_server.send(subscription, "as before").version) == 100


@pytest.mark.parametrize("word, code", [("throw", 301), ("reject", 302)])
def test_a_worker_that_fails_is_a_nack_after_the_ack(
    *,
    tap: Tap,
    site: Site,
    push_server: Serve,
    app_server: AppServer,
    subscription: Subscription,
    name: str,
    word: str,
    code: int,
) -> None:
    """Statistics only: the message is over."""

    def counted() -> float:
        return sample(push_server, "waystation_ua_command", command="nack", detail=str(code))

    nacks = counted()
    sent = app_server.send(subscription, f"{word} now")

    assert tap.wait(BROWSER, "nack", version=sent.version)["code"] == code
    assert tap.wait_ack(sent.version) == 100
    assert site.wait(name)[0]["text"] == f"{word} now"
    until(lambda: app_server.state(sent) == "delivered")
    until(lambda: counted() > nacks)


def test_a_subscription_that_is_refused_fails_in_the_page(
    browser: Firefox, tap: Tap, name: str
) -> None:
    def refuse(speaker: str, message: Message) -> Message:
        if (speaker, message.get("messageType")) == (SERVER, "register"):
            return {**message, "status": 500, "pushEndpoint": ""}
        return message

    tap.rule = refuse

    assert browser.call(f"subscribe({name!r}, '')") == {"error": "AbortError"}
    tap.rule = None
    assert subscribe(browser, name)


def test_an_idle_browser_pings_and_is_answered_at_once(
    browser: Firefox, tap: Tap, subscription: Subscription
) -> None:
    before = tap.mark
    tap.wait(BROWSER, "{}", since=before, timeout_s=PING_INTERVAL_MS / 1000 * 4)
    tap.wait(SERVER, "{}", since=before)

    asked = tap.times(BROWSER, "{}", since=before)[0]
    answered = tap.times(SERVER, "{}", since=before)[0]
    assert answered - asked < 1.0
    assert not tap.seen(BROWSER, "hello", since=before)


def test_a_browser_is_told_versions_of_broadcasts_that_it_does_not_know(
    browser: Firefox, tap: Tap, push_server: Serve
) -> None:
    """It keeps a version once its settings service has confirmed it, which is not to be had here:
    the second hello is made to look as if it had."""

    def knows(speaker: str, message: Message) -> Message:
        if (speaker, message.get("messageType")) == (BROWSER, "hello"):
            return {**message, "broadcasts": {BROADCAST: "v2"}}
        return message

    asked = [one["broadcasts"] for one in tap.seen(BROWSER, "hello")]
    told = [one["broadcasts"] for one in tap.seen(SERVER, "hello")]
    before = tap.mark
    publish(push_server, BROADCAST, "v2")
    tap.wait(SERVER, "broadcast", since=before, broadcasts={BROADCAST: "v2"})
    tap.rule = knows
    tap.cut()
    reconnected(tap, before)

    assert (asked[0], told[0]) == ({BROADCAST: "v0"}, {BROADCAST: "v1"})
    assert tap.wait(SERVER, "hello", since=before)["broadcasts"] == {}
    assert len(tap.seen(SERVER, "broadcast", since=before)) == 1


def test_a_broadcast_nobody_asked_for_is_ignored(
    tap: Tap, site: Site, app_server: AppServer, subscription: Subscription, name: str
) -> None:
    tap.say({"messageType": "broadcast", "broadcasts": {"test/unknown": "v1"}})
    tap.say({})
    sent = app_server.send(subscription, "after a broadcast")

    assert tap.wait_ack(sent.version) == 100
    assert site.wait(name)[0]["text"] == "after a broadcast"
