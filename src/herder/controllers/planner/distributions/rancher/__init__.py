"""K3s and RKE2: plans that are byte-compatible with Rancher's and use its installer images."""
