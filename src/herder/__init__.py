"""Herder: clusters on machines of any kind, managed for life."""

__version__ = "0.1.0.dev0"
