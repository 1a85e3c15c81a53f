"""What the core is told, and what it asks for: values without behaviour (`core.py` says how they belong together)."""

from typing import Any, Dict, List, NamedTuple, Optional, Union

from herder.agent.outputs import PeriodicOutput
from herder.agent.plan import File, Instruction, Probe

Data = Dict[str, bytes]


class Now(NamedTuple):
    wall: float  # seconds since 1970: for what is written down
    steady: float  # seconds of a clock that never jumps: for waiting


class Secret(NamedTuple):
    uid: str
    version: str  # resourceVersion
    data: Data
    raw: Any = None  # what the shell needs to write it back; the core never looks at it


class Evidence(NamedTuple):
    """Why a plan failed."""

    instruction: str  # its name; empty: no instruction was to blame
    position: int  # of the instruction; -1: none
    exit_code: int
    error: str
    tail: str  # the end of what it said


class Result(NamedTuple):
    succeeded: bool
    at: float  # when the run began, wall
    outputs: Dict[str, bytes]
    periodic: Dict[str, PeriodicOutput]
    evidence: Optional[Evidence]


class Record(NamedTuple):
    """What outlives a crash: the last run that was begun, and what came of it."""

    uid: str
    revision: str  # of the plan; empty in the protocol without states
    checksum: str
    attempt: int
    result: Optional[Result]


# --- events --------------------------------------------------------------------------------------------------------


class SecretSeen(NamedTuple):
    secret: Secret
    consistent: bool = False  # it is what the server has now, not what a watch tells, which may lag behind


class SecretGone(NamedTuple):
    """It was deleted, or is not there yet."""


class Written(NamedTuple):
    secret: Secret


class Conflict(NamedTuple):
    """Somebody else has written since; nothing was changed."""


class Unanswered(NamedTuple):
    """A read or a write failed. Of a write nobody knows whether it was done."""

    reason: str
    too_large: bool = False  # refused for the size of what was to be written


class Entered(NamedTuple):
    """No restart is pending, and others can see that a plan is being applied."""


class Blocked(NamedTuple):
    reason: str


class FilesWritten(NamedTuple):
    error: str = ""  # names the file; empty: all were written


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


class Tick(NamedTuple):
    """The time that `Core.wake_at` named has come."""


Event = Union[
    SecretSeen, SecretGone, Written, Conflict, Unanswered, Entered, Blocked, FilesWritten, Finished, Probed, Tick
]


# --- actions -------------------------------------------------------------------------------------------------------


class Persist(NamedTuple):
    """On disk before the next action is begun. Nothing is answered."""

    record: Record


class Write(NamedTuple):
    """The secret with this data, unless it changed since. Answered by Written, Conflict, SecretGone or Unanswered."""

    secret: Secret
    data: Data


class Read(NamedTuple):
    """What the server has now. Answered by SecretSeen (consistent), SecretGone or Unanswered."""


class Enter(NamedTuple):
    """Take the interlock and keep a copy of the plan. Answered by Entered or Blocked."""

    checksum: str
    plan: bytes


class WriteFiles(NamedTuple):
    files: List[File]


class Run(NamedTuple):
    """Answered by Finished."""

    place: str  # name of the directory to run in
    instruction: Instruction
    attempt: int


class Leave(NamedTuple):
    """Give the interlock back. Nothing is answered."""


class StartProbe(NamedTuple):
    """Answered by Probed with the same round."""

    round: int
    probe: Probe
    delay: int


class Say(NamedTuple):
    """For the log."""

    level: str  # debug, info, warning, error
    text: str


Action = Union[Persist, Write, Read, Enter, WriteFiles, Run, Leave, StartProbe, Say]
