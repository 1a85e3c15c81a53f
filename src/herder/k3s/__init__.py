"""K3s by our own installer image: made from one binary of k3s, with the contract of Rancher's."""
