"""Gates on a copy of the user's model, their penalty and their parameters."""
