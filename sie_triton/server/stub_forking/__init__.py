"""Stubs forked from one process. README.md says why, what it costs and how to turn it off."""
