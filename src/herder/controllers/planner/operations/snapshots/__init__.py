"""Snapshots: on demand, on a schedule and before upgrades, their list, and their deletion."""
