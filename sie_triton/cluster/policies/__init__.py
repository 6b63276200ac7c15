"""Decisions of a cluster as pure functions: sidecars, gateways and the simulator call the same ones."""
