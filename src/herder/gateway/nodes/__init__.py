"""Machines that ask for their plan: registration, install scripts and what they download."""
