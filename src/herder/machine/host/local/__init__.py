"""`local` machines: Debian with systemd as PID 1, in Linux namespaces of this host."""
