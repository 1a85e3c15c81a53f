"""Snapshots of kubeadm and embedded servers, local and in S3. It runs on nodes with Python 3.9 or later.

`embedded.py` imports the store of the engine, which embedded servers have installed. All other modules need only the
standard library.
"""
