"""Rules: how channel labels pass each operation, one family a file."""
