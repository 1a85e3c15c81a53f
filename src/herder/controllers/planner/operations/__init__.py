"""Day-two operations: snapshots, restore, and rotation of certificates and encryption keys."""
