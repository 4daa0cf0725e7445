"""What a network's calls do to channels: traces, labels, and the groups that follow."""
