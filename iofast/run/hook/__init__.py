"""The folder that `iofast run` puts first on PYTHONPATH; Python imports its `sitecustomize` when it starts."""
