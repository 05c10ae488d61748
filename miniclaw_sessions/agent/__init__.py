"""Sessions at work: what a model and a tool must offer, and the loop that lets them answer."""
