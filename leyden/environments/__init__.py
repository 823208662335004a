"""Tasks, scorers and exports. Empty yet: an agent returns its reward, or calls ``leyden.emit_reward``."""
