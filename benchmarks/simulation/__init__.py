"""Simulation of a cluster: the production policies under a discrete-event clock.

load → rules (ours, reference) → machines → report
"""
