"""Evidence that two models compute the same function."""
