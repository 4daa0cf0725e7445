"""Each table and figure of the paper is data: named runs, and the numbers that follow from them."""
