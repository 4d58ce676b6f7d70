from waystation.push.connect.broadcasts import NONE, NOT_FOUND, SHARED_MAX, Broadcasts


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
