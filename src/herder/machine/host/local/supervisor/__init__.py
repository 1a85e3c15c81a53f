"""The supervisor process of one machine, which outlives the daemon: boots it, handles reboots, and records its end."""

# Files of the machine's directory that it shares with the daemon.
CONFIG = "boot.json"  # boot configuration
LOCK = "lock"  # held while it runs; identifies the process
STATUS = "status.json"  # boot progress
CONSOLE = "console.log"  # console output of the machine
