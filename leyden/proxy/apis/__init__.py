"""The request forms agents speak, one file each. The engine is asked in OpenAI's, and what it samples is captured once, for all of them."""

from leyden.proxy.apis.api import Api, Stream
from leyden.proxy.apis.chat import ChatCompletions
from leyden.proxy.apis.completions import Completions
from leyden.proxy.apis.messages import Messages
from leyden.proxy.apis.responses import Responses

MESSAGES = Messages()
APIS: tuple[Api, ...] = (ChatCompletions(), Completions(), Responses(), MESSAGES)
"""Each serves its ``path`` below ``/v1``."""

__all__ = ["APIS", "MESSAGES", "Api", "Stream"]
