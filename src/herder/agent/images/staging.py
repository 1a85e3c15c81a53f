"""Provide the image of an instruction in a directory: from the cache, a local archive or a registry."""

import contextlib
import os
import shutil
from typing import IO, Callable, Iterable, List, Optional, cast

from herder.agent.images import archives, blobs, compression, layers, reference, registries
from herder.agent.images.blobs import LayerFile
from herder.agent.images.kept import ImageCache
from herder.agent.images.keychain import Keychain
from herder.agent.images.reference import ImageError, Reference
from herder.agent.images.registry import Puller

_WINDOWS_ROOT = "Files/bin"
_SYSTEM = "windows" if os.name == "nt" else "linux"


class Stager:
    def __init__(
        self,
        images_directory: str,
        registries_file: str,
        directory: str,
        say: Callable[[str], None],
        keychain: Optional[Keychain] = None,
    ) -> None:
        """`directory` holds cached images and temporary files."""
        self._images = images_directory
        self._registries = registries_file
        self._scratch = os.path.join(directory, "scratch")
        self._say = say
        self._keychain = keychain or Keychain("", "")
        self._kept = ImageCache(os.path.join(directory, "kept"))

    def begin(self, images: Iterable[str]) -> None:
        """A plan with these images is about to run. Invalid references are reported when they are staged."""
        names = set()
        for name in images:
            with contextlib.suppress(ImageError):
                names.add(str(reference.parse(name)))
        self._kept.begin(names)

    def stage(self, name: str, directory: str) -> None:
        image = reference.parse(name)
        shutil.rmtree(self._scratch, ignore_errors=True)
        os.makedirs(self._scratch, 0o700)
        try:
            digest = self._found(image)
            self._kept.place(str(image), digest, directory)
        except blobs.UNREADABLE as error:
            raise ImageError(f"image {image}: {error}") from error
        finally:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _found(self, image: Reference) -> str:
        """Return the digest, once the image is cached."""
        if image.digest and self._kept.has(image.digest):
            return image.digest
        return self._in_archives(image) or self._pulled(image)

    # --- sources ----------------------------------------------------------------------------------------------------

    def _in_archives(self, image: Reference) -> str:
        """Return the digest from the first archive that has it; "" if none has."""
        problems: List[str] = []
        for path in archives.listed(self._images):
            known = self._kept.digest_in(path, str(image))
            if known == "":
                continue
            if known and self._kept.has(known):
                return known
            try:
                found = archives.find(path, image, blobs.platform(), _SYSTEM, self._scratch)
                self._kept.note(path, str(image), found.digest if found else "")
                if found:
                    return self._keep(found.digest, found.fetch(self._scratch))
            except blobs.UNREADABLE as error:
                problems.append(f"{path}: {error}")
        if problems:
            raise ImageError(f"{image} may be in an archive that cannot be read: {'; '.join(problems)}")
        return ""

    def _pulled(self, image: Reference) -> str:
        """Pull from the first endpoint that has all of it."""
        problems: List[str] = []
        for endpoint in registries.find(self._registries).endpoints(image):
            self._say(f"looking for {image} at {endpoint.url}")
            try:
                puller = Puller(self._keychain.completed(endpoint))
                found = puller.find(image, blobs.platform(), _SYSTEM)
                if self._kept.has(found.digest):
                    return found.digest
                self._say(f"pulling {image}, {found.digest}")
                return self._keep(found.digest, puller.fetch(found, self._scratch))
            except (ImageError, *blobs.UNREADABLE) as error:
                problems.append(str(error) or type(error).__name__)
        raise ImageError(f"image {image} cannot be pulled: {'; '.join(problems)}")

    def _keep(self, digest: str, files: List[LayerFile]) -> str:
        self._kept.add(digest, lambda directory: _unpack(files, directory))
        return digest


def _unpack(files: List[LayerFile], directory: str) -> None:
    budget = layers.Budget()
    for file in files:
        with compression.opened(file.path) as stream:
            content = blobs.Checked(stream, file.content_digest, file.name)
            only = _WINDOWS_ROOT if _SYSTEM == "windows" else ""
            layers.unpack(cast(IO[bytes], content), directory, only, budget)
            content.finish()
        os.unlink(file.path)
