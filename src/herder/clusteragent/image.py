"""Build the agent's image without a container engine: one layer with Herder and its dependencies, on a Python base
image.

Compiled extensions come from this installation, so the base must have the same architecture and Python minor version.
"""

from __future__ import annotations

import gzip
import json
import sys
from typing import Any

import herder
from herder import packing
from herder.clusteragent import interpreter
from herder.clusteragent.archive import manifest_for, oci_type
from herder.clusteragent.registry import Login, Reference, RegistryError, Repository
from herder.oci import CONFIG, MANIFEST, PACKED_LAYER, Image, Layer, digest_of, image, processor

PLACE = "opt/herder"
NEEDED = ("aiohttp", "cryptography", "msgspec", "pyyaml")
"""Dependencies of the agent; the manager needs more."""
ENTRYPOINT = ["python3", "-m", "herder.clusteragent"]
COMPRESSION = 6  # a higher level takes several times as long and saves little


def whole() -> Image:
    """Build without a base image, using this installation's interpreter."""
    layers = [Layer.packed(interpreter.layer()), Layer.packed(layer())]
    return image(layers, {"Env": [*interpreter.variables(), f"PYTHONPATH=/{PLACE}"], "Entrypoint": ENTRYPOINT})


async def push(base: str, target: str, login: Login | None = None) -> str:
    """Build and push the image; return its digest. The login is used for the target registry only."""
    from_, to = Reference.parse(base), Reference.parse(target)
    source_login = login if from_.host == to.host else None
    async with Repository(from_, source_login) as source, Repository(to, login) as destination:
        known = json.loads(await manifest_for(source, processor()))
        config = json.loads(await source.blob(known["config"]["digest"]))
        _check_python(base, config)
        for each in known["layers"]:
            if not await destination.has_blob(each["digest"]):
                await destination.put_blob(await source.blob(each["digest"]))
        plain = layer()
        packed = gzip.compress(plain, COMPRESSION, mtime=0)
        await destination.put_blob(packed)
        written = json.dumps(_with_agent(config, plain)).encode()
        await destination.put_blob(written)
        added = {"mediaType": PACKED_LAYER, "digest": digest_of(packed), "size": len(packed)}
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {"mediaType": CONFIG, "digest": digest_of(written), "size": len(written)},
            "layers": [*({**each, "mediaType": oci_type(each["mediaType"])} for each in known["layers"]), added],
        }
        return await destination.put_manifest(json.dumps(manifest).encode())


# --- base image -----------------------------------------------------------------------------------------------------


def _check_python(base: str, config: dict[str, Any]) -> None:
    variables = dict(each.partition("=")[::2] for each in (config.get("config") or {}).get("Env") or ())
    ours, theirs = sys.version_info[:2], variables.get("PYTHON_VERSION", "")
    if theirs.split(".")[:2] != [str(part) for part in ours]:
        raise RegistryError(
            f"{base}: has Python {theirs or 'of an unknown version'}, but Herder runs on {ours[0]}.{ours[1]}; "
            f"use a base such as python:{ours[0]}.{ours[1]}-slim"
        )


# --- agent layer ----------------------------------------------------------------------------------------------------


def _with_agent(config: dict[str, Any], plain: bytes) -> dict[str, Any]:
    running = config.get("config") or {}
    variables = [each for each in running.get("Env") or () if not each.startswith("PYTHONPATH=")]
    roots = config.get("rootfs") or {}
    return {
        **config,
        "config": {**running, "Env": [*variables, f"PYTHONPATH=/{PLACE}"], "Entrypoint": ENTRYPOINT, "Cmd": None},
        "rootfs": {"type": "layers", "diff_ids": [*(roots.get("diff_ids") or ()), digest_of(plain)]},
        "history": [*(config.get("history") or ()), {"created_by": f"herder agent image {herder.__version__}"}],
    }


def layer() -> bytes:
    return packing.packed(PLACE, NEEDED)
