"""The process that outlives the daemon with one machine: starts it, starts it again when it reboots, notes its end."""
