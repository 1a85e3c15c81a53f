"""The host daemon, which owns the `process` and `local` machines of this host, and its client."""
