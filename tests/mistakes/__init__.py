"""Mistakes of users, and the first line that each of them prints: `python -m tests.mistakes` publishes the table."""
