"""Snapshots of etcd, restores, and the keys that encrypt its Secrets."""
