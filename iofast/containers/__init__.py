"""Containers: formats of records in files, their readers and writers."""
