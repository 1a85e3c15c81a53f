"""Upstream Kubernetes with kubeadm: its installer image, and the services on its machines."""
