"""What the paper compares with: one method a file, all behind one small interface."""
