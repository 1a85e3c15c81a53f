"""Invalid input of every kind to the embedded server and to kube-apiserver: same code and reason, no crash, no hang."""
