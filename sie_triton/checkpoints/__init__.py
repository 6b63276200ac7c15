"""What libraries save, and how to read it."""
