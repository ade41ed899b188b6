"""What can be seen of a training from outside, each probe on its own. `None` stands for what cannot be seen."""
