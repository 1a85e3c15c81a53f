"""Events and actions of the core: plain values; `core.py` describes how they relate."""

from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union

from herder.agent.core.outputs import PeriodicOutput
from herder.agent.core.plan import File, Instruction, Probe

Data = Dict[str, bytes]


class Now(NamedTuple):
    wall: float  # seconds since 1970, for timestamps
    steady: float  # monotonic seconds, for waiting


class Secret(NamedTuple):
    uid: str
    version: str  # resourceVersion
    data: Data
    raw: Any = None  # opaque to the core; needed to write the Secret back


class Evidence(NamedTuple):
    """Why a plan failed."""

    instruction: str  # name of the instruction; empty if none is to blame
    position: int  # index of the instruction; -1 if none
    exit_code: int
    error: str
    tail: str  # end of its output


class Result(NamedTuple):
    succeeded: bool
    at: float  # start of the run, wall clock
    outputs: Dict[str, bytes]
    periodic: Dict[str, PeriodicOutput]
    evidence: Optional[Evidence]


class Record(NamedTuple):
    """Survives a crash: the last run that was started, and its result."""

    uid: str
    revision: str  # revision of the plan; empty without plan-state
    checksum: str
    attempt: int
    result: Optional[Result]


# --- events --------------------------------------------------------------------------------------------------------


class SecretSeen(NamedTuple):
    secret: Secret
    consistent: bool = False  # whether it is the server's current state; a watch event may lag behind


class SecretGone(NamedTuple):
    """The Secret was deleted, or does not exist yet."""


class Written(NamedTuple):
    secret: Secret


class Conflict(NamedTuple):
    """The Secret was changed by someone else; nothing was written."""


class RequestFailed(NamedTuple):
    """A read or write failed; a write may have succeeded anyway."""

    reason: str
    too_large: bool = False  # rejected because of its size


class InterlockAcquired(NamedTuple):
    """No restart is pending, and the interlock shows that a plan is being applied."""


class Blocked(NamedTuple):
    reason: str


class FilesWritten(NamedTuple):
    error: str = ""  # names the file; empty on success


class Finished(NamedTuple):
    """An instruction ended, or could not be started (exit code -1 and an error)."""

    exit_code: int
    stdout: bytes = b""
    stderr: bytes = b""
    error: str = ""


class Probed(NamedTuple):
    round: int
    name: str
    succeeded: bool
    error: str = ""
    service: Tuple[str, str] = ("", "")  # unit and state of the failing service behind the probe


class Tick(NamedTuple):
    """The time in `Core.wake_at` has come."""


Event = Union[
    SecretSeen,
    SecretGone,
    Written,
    Conflict,
    RequestFailed,
    InterlockAcquired,
    Blocked,
    FilesWritten,
    Finished,
    Probed,
    Tick,
]


# --- actions -------------------------------------------------------------------------------------------------------


class Persist(NamedTuple):
    """Write the record to disk before the next action. Has no answer."""

    record: Record


class Write(NamedTuple):
    """Update the Secret unless it changed. Answered by Written, Conflict, SecretGone or RequestFailed."""

    secret: Secret
    data: Data


class Read(NamedTuple):
    """Read the server's current state. Answered by SecretSeen (consistent), SecretGone or RequestFailed."""


class AcquireInterlock(NamedTuple):
    """Acquire the interlock and save a copy of the plan. Answered by InterlockAcquired or Blocked."""

    checksum: str
    plan: bytes


class WriteFiles(NamedTuple):
    files: List[File]


class Run(NamedTuple):
    """Run an instruction. Answered by Finished."""

    place: str  # name of the working directory
    instruction: Instruction
    attempt: int


class ReleaseInterlock(NamedTuple):
    """Release the interlock. Has no answer."""


class StartProbe(NamedTuple):
    """Run a probe. Answered by Probed with the same round."""

    round: int
    probe: Probe
    delay: int


class Say(NamedTuple):
    """Log a message."""

    level: str  # debug, info, warning, error
    text: str


Action = Union[Persist, Write, Read, AcquireInterlock, WriteFiles, Run, ReleaseInterlock, StartProbe, Say]
