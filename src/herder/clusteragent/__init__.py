"""The cluster agent: a program in or beside a cluster that dials out to the manager, so that nobody dials in."""
