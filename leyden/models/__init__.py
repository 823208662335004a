"""Inference engines, and the checkpoints they serve: import, registry, verifier."""
