"""K3s and RKE2: plans in the form that their installer images and Rancher's own managers know."""
