"""Loads the Lua scripts (`scripts/*.lua`), which Redis runs atomically.

A script is called by its hash, and sent whole only if the server does not know it.
"""

import hashlib
from importlib.resources import files

import msgspec


class Script(msgspec.Struct, frozen=True):
    name: str
    text: str
    sha: str


def _load(name: str, *, of_agent: bool = True) -> Script:
    folder = files("waystation.storage.redis") / "scripts"
    text = (folder / f"{name}.lua").read_text(encoding="utf-8")
    if of_agent:
        text = (folder / "agent.lua").read_text(encoding="utf-8") + text
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


WRITE_RECORD = _load("write_record")
SWAP_RECORD = _load("swap_record")
REMOVE_USER_AGENT = _load("remove_user_agent")
ADD_CHANNEL = _load("add_channel")
REMOVE_CHANNEL = _load("remove_channel")
SAVE = _load("save")
SAVE_NEW = _load("save_new")
SAVE_IF_NEWER = _load("save_if_newer")
FETCH = _load("fetch")
FORGET = _load("forget")
SAVE_UPDATE = _load("save_update")
FORGET_UPDATE = _load("forget_update")
ADOPT = _load("adopt")
PURGE = _load("purge")
SWEEP_AGENTS = _load("sweep_agents")
NOTE_MILESTONES = _load("note_milestones", of_agent=False)
SWEEP_INDEX = _load("sweep_index", of_agent=False)
TRACK = _load("track", of_agent=False)
EXPIRE_TRACKED = _load("expire_tracked", of_agent=False)
PARTY_SWEPT = _load("party_swept", of_agent=False)
CLUSTER_COMMIT = _load("cluster_commit", of_agent=False)
CLUSTER_RENEW = _load("cluster_renew", of_agent=False)
CLUSTER_AGES = _load("cluster_ages", of_agent=False)
CLUSTER_LEAD = _load("cluster_lead", of_agent=False)
CLUSTER_RESIGN = _load("cluster_resign", of_agent=False)


def load_party(name: str) -> Script:
    """A party's script, preceded by the functions that all of them share."""
    folder = files("waystation.storage.redis") / "scripts"
    parts = [(folder / f"{part}.lua").read_text(encoding="utf-8") for part in ("party", name)]
    text = "".join(parts)
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())
