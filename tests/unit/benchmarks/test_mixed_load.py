"""What is posted: valid HTTP of every library, in the shares that are promised."""

import random

import h11
import pytest

from benchmarks.mixed_load import MixedLoad, Post, Sender, senders_of
from benchmarks.sender_libraries import BODY_BYTES_MAX, BODY_BYTES_MIN, LIBRARIES

SENDERS, POSTS, IN_FLIGHT = 96, 1920, 8


def planned(seed: int) -> list[Post]:
    rng = random.Random(seed)
    senders = senders_of(SENDERS, rng)
    for number, sender in enumerate(senders):
        sender.endpoints = [f"http://127.0.0.1:8082/wpush/v2/{number}-{n}" for n in range(3)]
    load = MixedLoad("http://127.0.0.1:8082", senders, rng, in_flight=IN_FLIGHT)
    return [post for lane in load.plan(POSTS) for post in lane]


@pytest.fixture(scope="module")
def posts() -> list[Post]:
    return planned(7)


def request_of(post: Post) -> tuple[h11.Request, bytes]:
    peer = h11.Connection(h11.SERVER)
    peer.receive_data(post.head + bytes(post.body_bytes))
    request, data = peer.next_event(), peer.next_event()
    assert isinstance(request, h11.Request)
    assert isinstance(data, h11.Data)
    return request, bytes(data.data)


def authorization(post: Post) -> bytes:
    return dict(request_of(post)[0].headers)[b"authorization"]


def test_every_request_is_valid_http_with_a_body_of_its_length(posts: list[Post]) -> None:
    for post in posts:
        request, body = request_of(post)

        assert b"{" not in post.head
        assert request.method == b"POST"
        assert len(body) == post.body_bytes
        assert BODY_BYTES_MIN <= post.body_bytes <= BODY_BYTES_MAX


def test_every_library_is_among_the_senders(posts: list[Post]) -> None:
    found = {post.sender.habits.library.name for post in posts}

    assert found == {library.name for library in LIBRARIES}


def test_three_out_of_four_tokens_were_never_used_before(posts: list[Post]) -> None:
    seen: set[bytes] = set()
    again = 0
    for post in posts:
        again += authorization(post) in seen
        seen.add(authorization(post))

    assert (again + SENDERS / 4) / POSTS == pytest.approx(0.25, abs=0.04)


def test_one_out_of_four_posts_opens_a_connection(posts: list[Post]) -> None:
    opened = sum(not post.sender.habits.reuses_connection for post in posts)

    assert opened / POSTS == pytest.approx(0.25, abs=0.04)


def test_no_sender_has_two_posts_under_way() -> None:
    rng = random.Random(1)
    senders = senders_of(10, rng)
    for sender in senders:
        sender.endpoints = ["http://127.0.0.1:8082/wpush/v2/x"]
    plan = MixedLoad("http://127.0.0.1:8082", senders, rng, in_flight=4).plan(100)

    lanes: list[set[Sender]] = [{post.sender for post in lane} for lane in plan]
    assert sum(len(lane) for lane in lanes) == len(set().union(*lanes))


def test_the_same_seed_plans_the_same_requests_but_for_keys_and_tokens(posts: list[Post]) -> None:
    def shape(post: Post) -> list[tuple[bytes, bytes]]:
        changing = {b"authorization", b"crypto-key"}
        return [line for line in request_of(post)[0].headers if line[0] not in changing]

    again = planned(7)

    assert [shape(post) for post in again] == [shape(post) for post in posts]
