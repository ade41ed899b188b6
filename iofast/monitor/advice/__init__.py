"""What to change, best first: one small rule for each piece of advice, each with its figure and its silence."""
