"""How much of the context window a conversation takes, as far as the model can tell."""

from collections.abc import Sequence

from langchain_core.language_models import BaseChatModel, BaseLanguageModel
from langchain_core.messages import BaseMessage
from langchain_core.tools import BaseTool


def window_of(model: BaseChatModel) -> int | None:
    """Return the model's context window in tokens: as its engine has it, else as its profile says, else None.

    Asking ``ChatWhiFlash`` starts its engine.
    """
    ask = getattr(model, "context_window", None)
    window = ask() if callable(ask) else (getattr(model, "profile", None) or {}).get("max_input_tokens")
    return window if isinstance(window, int) else None


def count_tokens(model: BaseChatModel, messages: Sequence[BaseMessage], tools: Sequence[BaseTool]) -> int | None:
    """Return the prompt's length in tokens; ``None`` if the model cannot count its own.

    LangChain's default counts with another model's tokenizer, which would be a wrong number: it is not asked.
    """
    if type(model).get_num_tokens_from_messages is BaseLanguageModel.get_num_tokens_from_messages:
        return None
    return model.get_num_tokens_from_messages(list(messages), tools=list(tools))
