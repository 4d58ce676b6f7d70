"""Random bytes come in blocks, and none is given out twice."""

from waystation.presence.session.resume_token import RANDOM_BLOCK_BYTES, RandomBytes


def test_tokens_are_unique() -> None:
    take = RandomBytes().take
    count = 3 * RANDOM_BLOCK_BYTES // 16 + 5

    assert len({take(16) for _ in range(count)}) == count


def test_a_used_up_block_is_replaced() -> None:
    take = RandomBytes().take
    sizes = [RANDOM_BLOCK_BYTES - 3, 16, RANDOM_BLOCK_BYTES, 1]

    assert [len(take(size)) for size in sizes] == sizes
