"""All that applying a plan does to the node: interlock, kept copies, files, images, instructions."""

import json
import os
import shutil
import threading
import time
from typing import Union

from herder.agent import files, storing
from herder.agent.config import Config
from herder.agent.events import Blocked, Enter, Entered, FilesWritten, Finished, Run, WriteFiles
from herder.agent.execution import Executor
from herder.agent.images.reference import ImageError
from herder.agent.interlock import Interlock
from herder.agent.log import Log
from herder.agent.plan import images_of

_KEPT = 64
_SUFFIX = "-applied.plan"
_STAMP = "%Y%m%d-%H%M%S"


class Hands:
    """Used by one plan at a time, from `enter` to `leave`."""

    def __init__(self, config: Config, log: Log) -> None:
        self._config = config
        self._log = log
        self._lock = threading.Lock()
        self._stamp = ""
        self._plan = b""  # that is being applied
        self._place = ""  # where the instructions of this plan have their directories
        self._needs_cleanup = False  # something was run since the last time
        self._interlock = Interlock(config.interlock_directory)
        self._interlock.clean()
        self.executor = Executor(os.path.join(config.state_directory, "output"))

    def enter(self, action: Enter) -> Union[Entered, Blocked]:
        self._lock.acquire()
        reason = self._interlock.enter(time.time())
        if reason:
            self._lock.release()
            return Blocked(reason)
        self._stamp = time.strftime(_STAMP)
        self._plan = action.plan
        if self._config.applied_plan_directory:
            keep_plan(self._config.applied_plan_directory, self._stamp, action.plan, action.checksum)
        self._place = os.path.join(self._config.work_directory, self._stamp)
        if os.path.exists(self._place) and not self._config.preserve_work_directory:
            shutil.rmtree(self._place, ignore_errors=True)  # the second run within a second
        self._needs_cleanup = True
        return Entered()

    def tidy(self) -> None:
        """While nobody waits: what earlier runs have left is removed, and the next one finds everything ready."""
        if not self._needs_cleanup or not self._lock.acquire(False):
            return
        try:
            if not self._config.preserve_work_directory:
                _remove_all_but(self._config.work_directory, self._stamp)
            self.executor.prepare()
            self._needs_cleanup = False
        finally:
            self._lock.release()

    def abandon(self) -> None:
        """At the end of the daemon: what still runs is ended, and nobody waits for us."""
        self.executor.end()
        self._interlock.leave()

    def close(self) -> None:
        """When nothing is run any more."""
        self.executor.close()

    def leave(self) -> None:
        self._interlock.leave()
        self._lock.release()

    def write_files(self, action: WriteFiles) -> FilesWritten:
        try:
            files.apply(action.files)
        except files.FileError as error:
            return FilesWritten(str(error))
        return FilesWritten()

    def run(self, action: Run) -> Finished:
        directory = os.path.join(self._place, action.place)
        try:
            os.makedirs(directory, 0o755, exist_ok=True)
            if action.instruction.image:
                self._stage(action.instruction.image, directory)
        except OSError as error:
            return Finished(-1, error=f"its directory cannot be made: {error}")
        except ImageError as error:
            return Finished(-1, error=str(error))
        return self.executor.run(directory, action.instruction, action.attempt)

    def _stage(self, image: str, directory: str) -> None:
        """Loaded when it is first needed: most plans of a node's life have no image."""
        from herder.agent.images.keychain import Keychain
        from herder.agent.images.staging import Stager

        config = self._config
        keychain = Keychain(config.credential_provider_config, config.credential_provider_directory, self._say)
        own = os.path.join(config.state_directory, "images")
        stager = Stager(config.images_directory, config.registries_file, own, self._say, keychain)
        stager.begin(images_of(self._plan))
        stager.stage(image, directory)

    def _say(self, text: str) -> None:
        self._log.say("info", text)


def _remove_all_but(directory: str, kept: str) -> None:
    for name in os.listdir(directory) if os.path.isdir(directory) else []:
        path = os.path.join(directory, name)
        if name != kept and os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path, ignore_errors=True)
        elif name != kept:
            storing.remove(path)


def keep_plan(directory: str, stamp: str, plan: bytes, checksum: str) -> None:
    """A copy of what is applied, unless the last copy is the same; the oldest are removed."""
    os.makedirs(directory, 0o700, exist_ok=True)
    try:
        content = json.dumps({"Plan": json.loads(plan.decode("utf-8")), "Checksum": checksum}).encode()
    except ValueError:
        return
    kept = sorted(name for name in os.listdir(directory) if name.endswith(_SUFFIX))
    if kept and storing.read(os.path.join(directory, kept[-1])) == content:
        return
    storing.write_plainly(os.path.join(directory, stamp + _SUFFIX), content)
    for name in kept[: max(0, len(kept) + 1 - _KEPT)]:
        storing.remove(os.path.join(directory, name))
