"""Language models that read pages as images."""
