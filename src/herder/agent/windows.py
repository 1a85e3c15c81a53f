"""Windows service: reports the agent's state to the service manager, and stops on its request.

Not yet run on Windows: tests simulate the service manager.
"""

import ctypes
from typing import Any, Callable, Optional

NAME = "rancher-system-agent"  # name that the install script uses

START_PENDING, STOP_PENDING, RUNNING, STOPPED = 2, 3, 4, 1
STOP, INTERROGATE, SHUTDOWN = 1, 4, 5
_OWN_PROCESS = 0x10
_ACCEPT_STOP, _ACCEPT_SHUTDOWN = 0x1, 0x4
_NO_ERROR, _NOT_IMPLEMENTED, _SERVICE_SPECIFIC = 0, 120, 1066
_STOP_HINT = 45_000  # milliseconds; an instruction may take 30 seconds to stop

_callback: Any = getattr(ctypes, "WINFUNCTYPE", ctypes.CFUNCTYPE)
_Main = _callback(None, ctypes.c_uint32, ctypes.c_void_p)
_Handler = _callback(ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p)


class Status(ctypes.Structure):
    _fields_ = (
        ("service_type", ctypes.c_uint32),
        ("state", ctypes.c_uint32),
        ("accepted", ctypes.c_uint32),
        ("exit_code", ctypes.c_uint32),
        ("specific_exit_code", ctypes.c_uint32),
        ("check_point", ctypes.c_uint32),
        ("wait_hint", ctypes.c_uint32),
    )


class _Entry(ctypes.Structure):
    _fields_ = (("name", ctypes.c_wchar_p), ("main", _Main))


class Service:
    """A service; `run` returns the exit code after `stop` was called, `library` is advapi32."""

    def __init__(self, library: Any, run: Callable[[], int], stop: Callable[[], None]) -> None:
        self._library = library
        self._run = run
        self._stop = stop
        self._handle: Optional[Any] = None
        self._state = STOPPED
        self._main = _Main(self._service_main)  # keep references: the library calls them later
        self._handler = _Handler(self._control)

    def serve(self) -> None:
        """Run as a service until it is stopped."""
        table = (_Entry * 2)(_Entry(NAME, self._main), _Entry(None, _Main()))
        if not self._library.StartServiceCtrlDispatcherW(table):
            raise OSError(f"only the service manager can start this: use 'sc start {NAME}', or 'sentinel' by hand")

    def _service_main(self, *_: Any) -> None:
        self._handle = self._library.RegisterServiceCtrlHandlerExW(NAME, self._handler, None)
        self._report_state(START_PENDING)
        self._report_state(RUNNING)
        code = 1
        try:
            code = self._run()
        finally:
            self._report_state(STOPPED, code)

    def _control(self, control: int, *_: Any) -> int:
        if control in (STOP, SHUTDOWN):
            self._report_state(STOP_PENDING)
            self._stop()
        elif control == INTERROGATE:
            self._report_state(self._state)
        else:
            return _NOT_IMPLEMENTED
        return _NO_ERROR

    def _report_state(self, state: int, code: int = 0) -> None:
        self._state = state
        status = Status(
            service_type=_OWN_PROCESS,
            state=state,
            accepted=_ACCEPT_STOP | _ACCEPT_SHUTDOWN if state == RUNNING else 0,
            exit_code=_SERVICE_SPECIFIC if code else _NO_ERROR,
            specific_exit_code=code,
            wait_hint=_STOP_HINT if state in (START_PENDING, STOP_PENDING) else 0,
        )
        self._library.SetServiceStatus(self._handle, ctypes.byref(status))
