"""A small OpenAI-compatible engine on Transformers: requests decoded together, shared prefixes computed once."""
