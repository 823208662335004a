"""Supervised fine-tuning on the attempts that passed. Start reading at ``loop``."""
