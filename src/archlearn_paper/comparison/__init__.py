"""All methods at equal parameters, equal epochs and equal data."""
