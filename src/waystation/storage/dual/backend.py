"""The dual backend: two push stores used as one while user agents move to the primary."""

from collections.abc import Sequence

import msgspec

from waystation.base.clock import Clock
from waystation.push.store import PushStore
from waystation.storage.backend import Backend, Opening
from waystation.storage.dual.url import DualUrl, StoreDsn, parse_dual_url
from waystation.storage.settings import Store


def _parse(url: str, db_settings: str = "") -> DualUrl:
    from waystation.storage.open import parse_store_url

    dual = parse_dual_url(url, db_settings)
    for part in dual.parts:
        parse_store_url(part.url, part.db_settings)
    return dual


def _parts(url: str, db_settings: str) -> Sequence[tuple[str, str]]:
    return [(part.url, part.db_settings) for part in parse_dual_url(url, db_settings).parts]


def _settings_of(part: StoreDsn, settings: Store) -> Store:
    return msgspec.structs.replace(settings, url=part.url, db_settings=part.db_settings)


async def _open_push(opening: Opening) -> PushStore:
    from waystation.storage.dual.push import DualPushStore
    from waystation.storage.open import open_push_store

    async def opened(part: StoreDsn) -> PushStore:
        return await open_push_store(
            part.url,
            data_dir=opening.data_dir,
            settings=_settings_of(part, opening.settings),
            clock=opening.clock,
            serves=opening.create_missing,
        )

    url = parse_dual_url(opening.url, opening.settings.db_settings)
    primary = await opened(url.primary)
    try:
        return DualPushStore(primary, await opened(url.secondary), url, opening.clock)
    except BaseException:
        await primary.close()
        raise


async def _init(url: str, settings: Store) -> list[str]:
    from waystation.storage.open import init_push_store

    dual = parse_dual_url(url, settings.db_settings)
    done: list[str] = []
    for name, part in (("primary", dual.primary), ("secondary", dual.secondary)):
        own = await init_push_store(part.url, _settings_of(part, settings))
        done += [f"{name}: {sentence}" for sentence in own]
    return done


async def _rotate(
    url: str, settings: Store, clock: Clock, *, dry_run: bool
) -> Sequence[str] | None:
    from waystation.storage.open import rotate_push_store

    done: list[str] | None = None
    for part in parse_dual_url(url, settings.db_settings).parts:
        own = _settings_of(part, settings)
        steps = await rotate_push_store(part.url, own, clock, dry_run=dry_run)
        if steps is not None:
            done = [*(done or ()), *steps]
    return done


BACKEND = Backend(
    name="dual",
    schemes=("dual",),
    url_forms=("dual:?primary=URL&secondary=URL",),
    scheme_alone=True,
    capabilities=None,
    parse=_parse,
    parts=_parts,
    open_push=_open_push,
    init=_init,
    rotate=_rotate,
)
