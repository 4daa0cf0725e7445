"""Which channels are tied to which, and which of them may go."""
