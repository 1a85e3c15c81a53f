"""Controllers of Rancher's provisioning: provisioning and management Clusters, registration tokens and their logs."""
