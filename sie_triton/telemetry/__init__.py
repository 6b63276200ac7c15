"""What an operator sees of a running server: logs, lines about requests, and traces.

request → identity (what its client sent) → a line in the log, spans of a trace
"""
