"""Containers: how records lie in files, and how they are found again."""
