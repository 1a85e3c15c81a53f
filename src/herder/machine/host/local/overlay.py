"""overlayfs mount options.

It imports little, because every supervisor loads it.
"""

from __future__ import annotations

from collections.abc import Sequence


def overlay_options(lower: Sequence[str], upper: str, work: str, *, rootless: bool) -> str:
    """`lower`: topmost first."""
    below = ":".join(_escaped(path) for path in lower)
    options = f"lowerdir={below},upperdir={_escaped(upper)},workdir={_escaped(work)}"
    return f"{options},userxattr" if rootless else options


def _escaped(path: str) -> str:
    """Escape the separators of the options."""
    for character in "\\:,":
        path = path.replace(character, f"\\{character}")
    return path
