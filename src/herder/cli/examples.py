"""Examples at the end of a command's help."""

from __future__ import annotations


def examples(*commands: str) -> str:
    """Epilog for a click command. The leading `\\b` keeps click from rewrapping the lines."""
    heading = "Example:" if len(commands) == 1 else "Examples:"
    return "\n".join(("\b", heading, *(f"  {command}" for command in commands)))
