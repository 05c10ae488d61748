"""The sessions of this machine's other programs: where they lie, how many there are, and keeping up with them."""
