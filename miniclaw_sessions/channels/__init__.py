"""Where people talk to the agent: what a channel must offer, who answers, and the dispatcher between the two."""
