"""The four patch types of the Kubernetes API, as pure functions on decoded objects.

No function modifies its arguments, and each returns a new document that the caller may modify: objects come from
caches, and later steps (pruning, defaulting) work in place.
"""

from __future__ import annotations

from herder.engine.patch.patches.json_patch import (
    MAX_OPERATIONS,
    JsonPatchError,
    JsonPatchTestFailed,
    JsonPatchTooLarge,
    JsonPatchUndecodable,
    apply_json_patch,
)
from herder.engine.patch.patches.merge_patch import apply_merge_patch
from herder.engine.patch.patches.strategic import PatchSchema, StrategicPatchError, apply_strategic_patch

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
