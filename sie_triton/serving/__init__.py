"""Record of the models that a launcher serves, and names of steps by revision."""
