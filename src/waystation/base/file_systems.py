"""Finds the type of the file system of a path: some lack features that we need."""

import os
from pathlib import Path


def file_system(path: Path) -> str:
    """Its type, such as `ext4`; "" if unknown."""
    try:
        mountinfo = Path("/proc/self/mountinfo").read_text()
    except OSError:
        return ""  # no Linux, or no /proc
    return file_system_of(os.path.realpath(path), mountinfo)


def file_system_of(path: str, mountinfo: str) -> str:
    """The type of the file system that `path` (real and absolute) lies on, or "" if unknown.

    `mountinfo` is the text of /proc/self/mountinfo, proc(5): fields, " - ", then the type.
    """
    best, kind = "", ""
    for line in mountinfo.splitlines():
        before, dash, after = line.partition(" - ")
        fields = before.split()
        if not dash or len(fields) < 5:
            continue
        point = fields[4].replace("\\040", " ")
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):  # of two mounts at one place the later one counts
            best, kind = point, after.split()[0]
    return kind
