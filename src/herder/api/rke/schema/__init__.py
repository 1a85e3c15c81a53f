"""The schemas of provisioned clusters. What upstream accepts is accepted; what it would misread is refused."""
