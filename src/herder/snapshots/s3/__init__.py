"""A small client of S3: Signature Version 4, path-style requests over HTTPS, bounded buffers."""
