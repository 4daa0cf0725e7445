"""A plan says what will change; carrying it out is mechanical."""
