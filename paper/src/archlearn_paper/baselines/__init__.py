"""The methods compared with: one a file, all behind one small interface."""
