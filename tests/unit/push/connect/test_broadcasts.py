from waystation.push.connect.broadcasts import (
    FRAMES_MAX,
    NONE,
    NOT_FOUND,
    SHARED_MAX,
    Broadcasts,
    Subscriptions,
)


def known(**versions: str) -> Broadcasts:
    broadcasts = Broadcasts()
    broadcasts.update(versions)
    return broadcasts


def test_versions_that_differ_are_told_and_current_ones_are_not() -> None:
    """C-131"""
    _, delta = known(a="1", b="2", c="3").subscribe(NONE, {"a": "1", "b": "1"})

    assert delta == {"b": "2"}


def test_an_unknown_id_is_an_error_for_that_id_and_is_not_followed() -> None:
    """C-132, C-135"""
    broadcasts = known(a="1")
    subscriptions, delta = broadcasts.subscribe(NONE, {"a": "1", "x": "1"})
    broadcasts.update({"x": "2"})

    assert delta == {"errors": {"x": NOT_FOUND}}
    assert subscriptions.ids == ("a",)
    assert broadcasts.delta(subscriptions)[1] == {}


def test_a_change_is_told_once() -> None:
    """C-133, C-136"""
    broadcasts = known(a="1")
    subscriptions, _ = broadcasts.subscribe(NONE, {"a": "1"})
    assert broadcasts.update({"a": "2"}) == 1
    subscriptions, delta = broadcasts.delta(subscriptions)

    assert delta == {"a": "2"}
    assert broadcasts.delta(subscriptions) == (subscriptions, {})


def test_only_the_last_of_several_changes_is_told() -> None:
    broadcasts = known(a="1")
    subscriptions, _ = broadcasts.subscribe(NONE, {"a": "1"})
    broadcasts.update({"a": "2"})
    broadcasts.update({"a": "3"})

    assert broadcasts.delta(subscriptions)[1] == {"a": "3"}


def test_what_is_followed_by_others_is_not_told() -> None:
    """C-138"""
    broadcasts = known(a="1", b="1")
    subscriptions, _ = broadcasts.subscribe(NONE, {"a": "1"})
    broadcasts.update({"b": "2"})

    assert broadcasts.delta(subscriptions)[1] == {}


def test_the_same_version_again_is_no_change() -> None:
    """C-136"""
    broadcasts = known(a="1")

    assert broadcasts.update({"a": "1"}) == 0


def test_an_empty_source_removes_nothing() -> None:
    broadcasts = known(a="1")
    broadcasts.update({})

    assert broadcasts.versions == {"a": "1"}
    assert broadcasts.subscribe(NONE, {"a": "0"})[1] == {"a": "1"}


def test_a_later_subscription_adds_and_brings_what_is_pending_for_earlier_ones() -> None:
    """C-134"""
    broadcasts = known(a="1", b="1")
    subscriptions, _ = broadcasts.subscribe(NONE, {"a": "1"})
    broadcasts.update({"a": "2"})
    subscriptions, delta = broadcasts.subscribe(subscriptions, {"b": "0"})

    assert delta == {"a": "2", "b": "1"}
    assert subscriptions.ids == ("a", "b")
    assert broadcasts.delta(subscriptions)[1] == {}


def test_who_says_that_it_knows_is_not_told_what_is_pending() -> None:
    broadcasts = known(a="1")
    subscriptions, _ = broadcasts.subscribe(NONE, {"a": "1"})
    broadcasts.update({"a": "2"})

    assert broadcasts.subscribe(subscriptions, {"a": "2"})[1] == {}


def test_who_follows_nothing_shares_one_empty_subscription() -> None:
    broadcasts = known(a="1")

    assert broadcasts.subscribe(NONE, {})[0] is NONE
    assert broadcasts.subscribe(NONE, {"x": "1"})[0] is NONE


def test_equal_subscriptions_share_their_ids_up_to_a_limit() -> None:
    """A user agent chooses its set: without a limit it could fill our memory."""
    broadcasts = Broadcasts()
    broadcasts.update({f"id/{n}": "1" for n in range(SHARED_MAX + 10)})
    first, _ = broadcasts.subscribe(NONE, {"id/0": "1"})
    for n in range(SHARED_MAX + 10):
        broadcasts.subscribe(NONE, {f"id/{n}": "1"})
    again, _ = broadcasts.subscribe(NONE, {"id/0": "1"})
    late, delta = broadcasts.subscribe(NONE, {f"id/{SHARED_MAX + 5}": "0"})

    assert again.ids is first.ids
    assert (late.ids, delta) == ((f"id/{SHARED_MAX + 5}",), {f"id/{SHARED_MAX + 5}": "1"})
    assert len(broadcasts._tuples) == SHARED_MAX


def test_a_change_is_framed_once_for_all_who_follow_the_same() -> None:
    broadcasts = known(a="1", b="1")
    everybody = [broadcasts.subscribe(NONE, {"a": "1"})[0] for _ in range(3)]
    another, _ = broadcasts.subscribe(NONE, {"a": "1", "b": "1"})
    broadcasts.update({"a": "2", "b": "2"})
    told = [broadcasts.frame(subscriptions) for subscriptions in everybody]

    payload = b'{"messageType":"broadcast","broadcasts":{"a":"2"}}'
    assert told[0] == (Subscriptions(("a",), 4), b"\x81%c%b" % (len(payload), payload))
    assert all(news[1] is told[0][1] and news[0] is told[0][0] for news in told)
    assert b'{"a":"2","b":"2"}' in (broadcasts.frame(another)[1] or b"")


def test_news_are_told_once_and_made_anew_after_a_change() -> None:
    broadcasts = known(a="1", b="1")
    subscriptions, _ = broadcasts.subscribe(NONE, {"a": "1"})
    assert broadcasts.frame(subscriptions) == (subscriptions, None)
    broadcasts.update({"a": "2"})
    heard, first = broadcasts.frame(subscriptions)
    broadcasts.update({"a": "3"})

    assert b'"a":"2"' in (first or b"")
    for late in (subscriptions, heard):
        assert b'"a":"3"' in (broadcasts.frame(late)[1] or b"")
    assert broadcasts.frame(broadcasts.frame(heard)[0])[1] is None
    assert broadcasts.frame(NONE) == (NONE, None)


def test_a_change_of_what_others_follow_is_no_news() -> None:
    broadcasts = known(a="1", b="1")
    subscriptions, _ = broadcasts.subscribe(NONE, {"a": "1"})
    broadcasts.update({"b": "2"})

    assert broadcasts.frame(subscriptions) == (Subscriptions(("a",), 3), None)


def test_the_frames_that_are_kept_have_a_limit() -> None:
    """A user agent chooses its set: without a limit it could fill our memory."""
    broadcasts = Broadcasts()
    names = [f"id/{n}" for n in range(FRAMES_MAX + 5)]
    broadcasts.update(dict.fromkeys(names, "1"))
    everybody = [broadcasts.subscribe(NONE, {name: "1"})[0] for name in names]
    broadcasts.update(dict.fromkeys(names, "2"))
    told = [broadcasts.frame(subscriptions)[1] for subscriptions in everybody]

    assert all(
        f'"{name}":"2"'.encode() in (frame or b"") for name, frame in zip(names, told, strict=True)
    )
    assert len(broadcasts._frames) == FRAMES_MAX
