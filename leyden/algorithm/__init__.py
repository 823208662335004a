"""From what was captured to a better model: triplets, rows, selection, statistics, and the SFT loop."""
