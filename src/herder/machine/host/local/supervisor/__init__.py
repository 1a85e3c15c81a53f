"""The process that outlives the daemon with one machine: starts it, starts it again when it reboots, notes its end."""

# The files of the machine's directory that it and the daemon share.
CONFIG = "boot.json"  # what to start
LOCK = "lock"  # whether it runs, and which process it is
STATUS = "status.json"  # how far it came
CONSOLE = "console.log"  # what the machine says while it boots
