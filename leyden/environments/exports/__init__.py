"""Datasets out of results: one writer, one file for each format."""
