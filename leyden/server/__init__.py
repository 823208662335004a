"""The store: a durable queue of rollouts with everything captured about them. see ``sqlstore``, ``serving``, ``client``."""
