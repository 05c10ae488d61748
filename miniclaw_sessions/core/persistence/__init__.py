"""How and when bytes become safe."""
