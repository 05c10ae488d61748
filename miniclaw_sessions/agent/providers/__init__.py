"""Models: each file puts one service behind `agent.provider.Provider`."""
