"""Endpoints for machines: registration, install scripts and downloads."""
