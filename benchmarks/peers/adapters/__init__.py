"""One small class for each store, so that all of them can be asked to do the same."""
