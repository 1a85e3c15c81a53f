"""Gets an image and unpacks it into a directory."""

import json
import os
import shutil
import tarfile
from typing import Callable, List

from herder.agent.images import archives, blobs, compression, layers, reference, registries
from herder.agent.images.reference import DEFAULT_REGISTRY, ImageError, Reference
from herder.agent.images.registries import Credentials, Endpoint, Registries
from herder.agent.images.registry import Puller

_WINDOWS_ROOT = "Files/bin"


class Stager:
    def __init__(self, images_directory: str, registries_file: str, scratch: str, say: Callable[[str], None]) -> None:
        """`scratch` holds layers while they are checked, and is emptied each time."""
        self._images = images_directory
        self._registries = registries_file
        self._scratch = scratch
        self._say = say

    def stage(self, name: str, directory: str) -> None:
        image = reference.parse(name)
        system = "windows" if os.name == "nt" else "linux"
        shutil.rmtree(self._scratch, ignore_errors=True)
        os.makedirs(self._scratch, 0o700)
        try:
            paths = archives.find(self._images, image, blobs.platform(), system, self._scratch)
            if paths is None:
                paths = self._pull(image, system)
            for path in paths:
                with compression.opened(path) as stream:
                    layers.unpack(stream, directory, _WINDOWS_ROOT if system == "windows" else "")
        except (OSError, EOFError, tarfile.TarError) as error:
            raise ImageError(f"image {image}: {error}") from error
        finally:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _pull(self, image: Reference, system: str) -> List[str]:
        """From the first endpoint that has all of it."""
        problems: List[str] = []
        for endpoint in registries.find(self._registries).endpoints(image):
            self._say(f"pulling {image} from {endpoint.url}")
            try:
                return Puller(_with_keychain(endpoint)).pull(image, blobs.platform(), system, self._scratch)
            except ImageError as error:
                problems.append(str(error))
        raise ImageError(f"image {image} cannot be pulled: {'; '.join(problems)}")


def _with_keychain(endpoint: Endpoint) -> Endpoint:
    """Without credentials of its own, an endpoint gets those that docker has for it."""
    home = os.environ.get("HOME", "")
    if endpoint.credentials != Credentials() or not home:
        return endpoint
    path = os.path.join(os.environ.get("DOCKER_CONFIG") or os.path.join(home, ".docker"), "config.json")
    try:
        with open(path, encoding="utf-8") as stream:
            known = json.load(stream).get("auths") or {}
    except (OSError, ValueError, AttributeError):
        return endpoint
    host = endpoint.url.split("/")[2]
    keys = (host, f"https://{host}", f"https://{host}/v1/") if host == DEFAULT_REGISTRY else (host, f"https://{host}")
    found = next((known[key] for key in keys if isinstance(known.get(key), dict)), None)
    if found is None:
        return endpoint
    config = {"configs": {host: {"auth": dict(found, identity_token=found.get("identitytoken"))}}}
    known_as = Registries(config, path).endpoints(Reference(host, endpoint.repository, "latest", ""))[-1]
    return endpoint._replace(credentials=known_as.credentials)
