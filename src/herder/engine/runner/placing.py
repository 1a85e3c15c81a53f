"""Volumes where nothing can be mounted: links at the paths that a pod wants, as far as this user may make them.

Only one pod runs at a time then, so a path means one thing; the links go with the pod. What every pod is given unasked
(its token, its termination message) is left out where it cannot be placed; a volume that the pod asked for is not.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from herder.engine.runner.isolation import NONE
from herder.engine.runner.sources import NotReady

TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"


class Links:
    """`work_dir` tells our links from everything else: nothing but those is ever replaced or removed."""

    def __init__(self, work_dir: Path) -> None:
        self._work_dir = work_dir
        self._made: list[Path] = []

    def place(self, mounts: list[dict[str, Any]], *, unasked: Callable[[str], bool]) -> None:
        for mount in mounts:
            target = Path(mount["target"])
            try:
                self._link(Path(mount["source"]), target)
            except OSError as error:
                if not unasked(str(target)):
                    told = f"cannot place a volume at {target}: {error.strerror}; {NONE.describe()}"
                    raise NotReady("CreateContainerConfigError", told) from error

    def remove(self) -> None:
        while self._made:
            link = self._made.pop()
            if self._is_ours(link):
                link.unlink()

    def _link(self, source: Path, target: Path) -> None:
        if self._is_ours(target):
            target.unlink()  # left by a runner that was killed
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(source)
        self._made.append(target)

    def _is_ours(self, path: Path) -> bool:
        return path.is_symlink() and Path(os.readlink(path)).is_relative_to(self._work_dir)
