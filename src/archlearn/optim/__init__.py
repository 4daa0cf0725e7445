"""Learn the gates under a budget: the gate optimiser and what it decides by."""
