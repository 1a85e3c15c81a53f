"""How machines are made: the `herder-machine` command, its drivers, and the daemon that owns machines of this host."""
