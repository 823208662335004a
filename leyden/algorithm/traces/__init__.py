"""Calls of a model as tracers saw them. Start reading at ``calls``."""
