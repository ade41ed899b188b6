"""Scripts of the repository, not shipped: sample images, wheels, long runs."""
