"""Sessions at work: what a model and a tool must offer, and the agent that lets them answer."""
