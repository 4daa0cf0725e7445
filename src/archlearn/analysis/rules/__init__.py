"""What each call does to labels: one family of calls a file."""
