"""The data that is saved and restored: etcd of kubeadm servers, and the store of embedded ones."""
