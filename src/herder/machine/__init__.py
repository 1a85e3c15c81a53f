"""Machine provisioning: the `herder-machine` CLI, its node drivers, and the daemon that owns machines of this host."""
