"""Plain upstream Kubernetes by kubeadm: its installer image, and what runs on its machines besides Kubernetes."""
