"""What only a store needs that several processes share: whose turn it is, who was first, and what all of them know."""
