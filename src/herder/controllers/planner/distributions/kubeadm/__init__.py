"""Plain upstream Kubernetes by kubeadm."""
