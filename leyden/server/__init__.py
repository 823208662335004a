"""The store: a durable queue of rollouts with everything captured about them. ``sqlstore`` runs it, ``serving`` offers it, ``client`` uses it."""
