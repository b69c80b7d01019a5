"""A LangChain agent on the embedded engine: two tools, one question, and who drafted what.

Run it with ``python examples/agent.py``. The embedded model is small: the grammar keeps its calls valid, what it
does with the answers is another matter.
"""

import argparse
from pathlib import Path

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import BaseTool, tool

from whiflash_agent import ChatWhiFlash


@tool
def list_files(folder: str) -> str:
    """List the files of a folder."""
    path = Path(folder)
    return "\n".join(sorted(entry.name for entry in path.iterdir())) if path.is_dir() else f"no folder {folder}"


@tool
def count_lines(path: str) -> str:
    """Count the lines of a text file."""
    file = Path(path)
    return str(len(file.read_text(errors="replace").splitlines())) if file.is_file() else f"no file {path}"


TOOLS: dict[str, BaseTool] = {t.name: t for t in (list_files, count_lines)}


def run(model: ChatWhiFlash, question: str, turns: int) -> list[BaseMessage]:
    """Let the model call tools for ``turns`` turns, then answer; return the conversation."""
    messages: list[BaseMessage] = [HumanMessage(question)]
    acting = model.bind_tools(list(TOOLS.values()), tool_choice="any")
    for _ in range(turns):
        reply = acting.invoke(messages)
        assert isinstance(reply, AIMessage)
        messages.append(reply)
        for call in reply.tool_calls:
            answer = TOOLS[call["name"]].invoke(call["args"])
            messages.append(ToolMessage(str(answer), tool_call_id=call["id"]))
    messages.append(model.invoke(messages))
    return messages


def main() -> None:
    """Parse the arguments, run, print the conversation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("question", nargs="?", default="Which files are in the folder '.'?")
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--enforce-eager", action="store_true", help="start sooner, run slower")
    options = parser.parse_args()
    with ChatWhiFlash(temperature=0, max_tokens=128, enforce_eager=options.enforce_eager) as model:
        for message in run(model, options.question, options.turns):
            message.pretty_print()
            if figures := message.response_metadata.get("whiflash"):
                print(
                    "drafters:",
                    figures["share_by_drafter"],
                    "tokens per round:",
                    figures["mean_acceptance_length"],
                )


if __name__ == "__main__":
    main()
