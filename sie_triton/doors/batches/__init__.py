"""OpenAI's files and batches: uploads in the data directory, and their requests as bulk work.

client → files, routes → Shelf (data directory) ← runner, in one process of the door → run → handlers of the routes
"""
