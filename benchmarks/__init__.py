"""Benchmarks: workloads, load generators and reports. All figures of a comparison come from one run on one machine."""
