"""kubeadm distribution: upstream Kubernetes, installed with kubeadm."""
