"""Scripts of the repository, not shipped: sample images, the demo, wheels, long runs."""
