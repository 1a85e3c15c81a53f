"""The node daemon: applies the plan in a node's plan Secret, and tells there what became of it.

The standard library alone, in the syntax of Python 3.6; shipped as one zipapp (`build.py`).
"""
