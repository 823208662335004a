"""The LLM proxy: an OpenAI-compatible door in front of the engines that writes down what every attempt sampled."""

from leyden.proxy.proxy import LLMProxy

__all__ = ["LLMProxy"]
