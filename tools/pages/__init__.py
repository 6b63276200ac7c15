"""Pages of docs/ that are generated from the source, so that they cannot drift from it."""
