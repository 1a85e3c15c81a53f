"""The daemon that owns the `process` and `local` machines of this host, and how others ask it."""
