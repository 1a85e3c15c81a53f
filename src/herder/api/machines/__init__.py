"""Kinds, names and flags of the generic machine provider, shared by controllers, Jobs and the machine CLI."""
