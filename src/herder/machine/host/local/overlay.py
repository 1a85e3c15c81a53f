"""How layers of files are put on top of each other, in the words of the kernel's overlay.

It imports little: every machine's supervisor has it in memory.
"""

from __future__ import annotations

from collections.abc import Sequence


def overlay_options(lower: Sequence[str], upper: str, work: str, *, rootless: bool) -> str:
    """`lower`: the topmost first."""
    below = ":".join(_escaped(path) for path in lower)
    options = f"lowerdir={below},upperdir={_escaped(upper)},workdir={_escaped(work)}"
    return f"{options},userxattr" if rootless else options


def _escaped(path: str) -> str:
    """The separators of the options."""
    for character in "\\:,":
        path = path.replace(character, f"\\{character}")
    return path
