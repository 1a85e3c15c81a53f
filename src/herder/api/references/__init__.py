"""References in user-written objects, the permissions they require, and the record of approved ones."""
