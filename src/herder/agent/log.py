"""Log lines for the journal or a file. They never contain values of a plan, which may be secret."""

import sys
import time

_LEVELS = {"trace": 0, "debug": 1, "info": 2, "warning": 3, "warn": 3, "error": 4, "fatal": 5, "panic": 5}


class Log:
    def __init__(self, level: str = "info") -> None:
        if level.lower() not in _LEVELS:
            raise ValueError(f"CATTLE_LOGLEVEL: unknown level {level!r}; use {', '.join(_LEVELS)}")
        self._least = _LEVELS[level.lower()]

    def say(self, level: str, text: str) -> None:
        if _LEVELS[level] >= self._least:
            moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            line = " ".join(text.split())
            sys.stderr.write(f"{moment} {level.upper()} {line}\n")
            sys.stderr.flush()
