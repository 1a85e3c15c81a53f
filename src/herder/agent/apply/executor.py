"""Apply a plan to the node: interlock, saved copies, files, images and instructions."""

import json
import os
import shutil
import threading
import time
from typing import Union

from herder.agent.apply import atomic_file, files
from herder.agent.apply.instruction import InstructionRunner
from herder.agent.apply.interlock import Interlock
from herder.agent.config import Config
from herder.agent.core.events import (
    AcquireInterlock,
    Blocked,
    FilesWritten,
    Finished,
    InterlockAcquired,
    Run,
    WriteFiles,
)
from herder.agent.core.plan import images_of
from herder.agent.images.reference import ImageError
from herder.agent.log import Log

_MAX_COPIES = 64
_SUFFIX = "-applied.plan"
_STAMP = "%Y%m%d-%H%M%S"


class NodeExecutor:
    """Performs the effects of one plan at a time, between `enter` and `leave`."""

    def __init__(self, config: Config, log: Log) -> None:
        self._config = config
        self._log = log
        self._lock = threading.Lock()
        self._stamp = ""
        self._plan = b""  # the plan being applied
        self._place = ""  # parent of the working directories of this plan's instructions
        self._needs_cleanup = False  # an instruction ran since the last cleanup
        self._interlock = Interlock(config.interlock_directory)
        self._interlock.clean()
        self.executor = InstructionRunner(os.path.join(config.state_directory, "output"))

    def enter(self, action: AcquireInterlock) -> Union[InterlockAcquired, Blocked]:
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
        return InterlockAcquired()

    def tidy(self) -> None:
        """Clean up after earlier runs and prepare for the next one; called while idle."""
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
        """Terminate the running instruction when the agent stops, without waiting."""
        self.executor.end()
        self._interlock.leave()

    def close(self) -> None:
        """Release resources once nothing runs any more."""
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
        """Unpack an image; the module is imported on first use, because most plans have no image."""
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
            atomic_file.remove(path)


def keep_plan(directory: str, stamp: str, plan: bytes, checksum: str) -> None:
    """Save a copy of the applied plan, unless the last copy is equal; remove the oldest copies."""
    os.makedirs(directory, 0o700, exist_ok=True)
    try:
        content = json.dumps({"Plan": json.loads(plan.decode("utf-8")), "Checksum": checksum}).encode()
    except ValueError:
        return
    kept = sorted(name for name in os.listdir(directory) if name.endswith(_SUFFIX))
    if kept and atomic_file.read(os.path.join(directory, kept[-1])) == content:
        return
    atomic_file.write_plainly(os.path.join(directory, stamp + _SUFFIX), content)
    for name in kept[: max(0, len(kept) + 1 - _MAX_COPIES)]:
        atomic_file.remove(os.path.join(directory, name))
