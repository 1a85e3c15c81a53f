"""`local` machines: a real Debian with systemd as its first process, in Linux namespaces of its own on this host."""
