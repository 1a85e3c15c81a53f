"""Installer image of k3s, built from a k3s binary; compatible with Rancher's installer contract."""
