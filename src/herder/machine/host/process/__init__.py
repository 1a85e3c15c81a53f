"""`process` machines: a directory and a process tree in its own namespaces."""
