"""The store's promises under kill -9 and power loss: random traffic, a crash at any moment, a checker of histories."""
