"""Plan what becomes smaller, then do it: exact compaction."""
