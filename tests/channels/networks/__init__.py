"""The networks that the contract of all channels is tried on, each in a module of its name."""
