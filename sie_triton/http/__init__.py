"""HTTP servers of every process: uvicorn, bounded connections, tokens, and protection against foreign web pages."""
