"""Bad input of every kind, to the embedded server and to a real one: same code, same reason, no crash, no hang."""
