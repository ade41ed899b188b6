"""Scripts of the repository, not shipped: sample images, the demo, contact sheets, wheels, long runs."""
