"""HTTP as a client that sends many small requests to few servers: the proxy to its engines, everybody to the store."""
