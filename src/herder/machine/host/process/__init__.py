"""Machines that are a directory and a tree of processes, each in namespaces of its own."""
