"""The heart: sessions, from what is said and logged to the manager that keeps them. Imports the ground only."""
