"""Networks to start from: those of the paper, and a user's own by name."""
