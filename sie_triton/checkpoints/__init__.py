"""Readers of the files that model libraries save."""
