"""The four kinds of patches that the Kubernetes API accepts, as pure functions on decoded objects.

None of them changes what it is given, and what each answers is a new document, the caller's own to change: objects come
from caches, and what follows a patch (pruning, defaulting) works in place.
"""

from __future__ import annotations

from herder.engine.patch.jsonpatch import (
    MAX_OPERATIONS,
    JsonPatchError,
    JsonPatchTestFailed,
    JsonPatchTooLarge,
    JsonPatchUndecodable,
    apply_json_patch,
)
from herder.engine.patch.mergepatch import apply_merge_patch
from herder.engine.patch.strategic import PatchSchema, StrategicPatchError, apply_strategic_patch

__all__ = [
    "MAX_OPERATIONS",
    "JsonPatchError",
    "JsonPatchTestFailed",
    "JsonPatchTooLarge",
    "JsonPatchUndecodable",
    "PatchSchema",
    "StrategicPatchError",
    "apply_json_patch",
    "apply_merge_patch",
    "apply_strategic_patch",
]
