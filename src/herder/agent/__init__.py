"""The node agent: applies the plan in a node's plan Secret and reports its status there.

It uses only the standard library and Python 3.6 syntax, and ships as one zipapp (`build.py`).
"""
