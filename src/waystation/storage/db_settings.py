"""Autopush's `db_settings`: a JSON object with settings of one kind of store, beside its URL."""

from collections.abc import Collection
from typing import Any

import msgspec

from waystation.base.settings import SettingsError


def read_db_settings(text: str, store: str, known: Collection[str]) -> dict[str, Any]:
    """The settings without nulls; `store` is the name that error messages use."""
    if not text.strip():
        return {}
    try:
        settings = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as exc:
        raise SettingsError([f"store.db_settings: not a JSON object: {exc}"]) from exc
    unknown = sorted(settings.keys() - set(known))
    if unknown:
        names = ", ".join(known)
        raise SettingsError(
            [f"store.db_settings: {store} has no setting {unknown[0]!r}; there are {names}"]
        )
    return {name: value for name, value in settings.items() if value is not None}
