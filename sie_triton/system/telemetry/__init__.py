"""Logs, lines about requests, traces, and details of forward passes: an operator's view of a running server.

request → identity (what its client sent) → a line in the log, spans of a trace
"""
