"""Each table and figure of the paper as data: runs, and numbers derived from them."""
