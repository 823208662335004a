"""Lets the tests of this directory use the tiny tokenizer, and the chat templates that ``benchmarks/templates.py`` measures."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
