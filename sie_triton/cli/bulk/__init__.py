"""Bulk work of `sie-triton encode`, `score` and `extract`: lines in, requests in parallel, records out in order.

Source → lines → chunks → run (bounded requests) → records → Sink (terminal, stream, or FILE by way of FILE.part)
"""
