"""Random bytes come in blocks, and none is given out twice."""

from waystation.presence.session.resume_token import RANDOM_BLOCK_BYTES, RandomBytes


def test_no_two_tokens_are_alike() -> None:
    take = RandomBytes().take
    count = 3 * RANDOM_BLOCK_BYTES // 16 + 5

    assert len({take(16) for _ in range(count)}) == count


def test_a_block_that_does_not_suffice_is_replaced_by_another() -> None:
    take = RandomBytes().take
    sizes = [RANDOM_BLOCK_BYTES - 3, 16, RANDOM_BLOCK_BYTES, 1]

    assert [len(take(size)) for size in sizes] == sizes
