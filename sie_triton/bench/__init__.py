"""Workloads, load and reports: everything is compared within one run on one machine."""
