"""What a launcher serves: the record of served models, and the names of steps by revision."""
