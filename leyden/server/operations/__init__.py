"""Every operation of the store: one plain function ``(tx, args) -> result``, grouped by noun."""
