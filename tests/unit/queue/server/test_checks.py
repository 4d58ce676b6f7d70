"""Proofs checked in threads: each batch gets its own results."""

import asyncio

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from waystation.queue.model import AuthKey, CorrId, KeyKind
from waystation.queue.server.checks import Checks, Proof


async def test_every_batch_gets_its_own_answers() -> None:
    private = Ed25519PrivateKey.generate()
    key = AuthKey(KeyKind.ED25519, private.public_key().public_bytes_raw())
    checks = Checks(threads=3, loop=asyncio.get_running_loop())
    try:
        batches = []
        for n in range(20):
            said = b"command %d" % n
            right = Proof((key,), private.sign(said), said, CorrId(b""), None)
            wrong = Proof((key,), private.sign(b"other"), said, CorrId(b""), None)
            nobody = Proof((), private.sign(said), said, CorrId(b""), None)
            batches.append([right, wrong, nobody] if n % 2 else [wrong, right])
        answers = await asyncio.gather(*(checks.ask(batch) for batch in batches))
    finally:
        checks.close()

    for n, answer in enumerate(answers):
        assert answer == ([True, False, False] if n % 2 else [False, True])
    assert checks.waiting == 0


async def test_an_exception_in_a_check_reaches_its_caller_and_the_threads_go_on() -> None:
    checks = Checks(threads=1, loop=asyncio.get_running_loop())
    broken = Proof((), b"of no length that exists", b"", CorrId(b""), None)
    try:
        outcome = await asyncio.gather(checks.ask([broken]), return_exceptions=True)
        fine = await checks.ask([Proof((), bytes(64), b"", CorrId(b""), None)])
    finally:
        checks.close()

    assert isinstance(outcome[0], KeyError)
    assert fine == [False]
