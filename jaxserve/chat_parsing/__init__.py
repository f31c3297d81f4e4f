"""Reasoning, content and tool calls out of a model's text; and grammars by which it writes calls as its family does."""

from jaxserve.chat_parsing.choice import ToolChoice, resolve_tool_choice
from jaxserve.chat_parsing.grammar import Thinking, ends_of_thinking, response_grammar
from jaxserve.chat_parsing.message import (
    ContentDelta,
    ContentWasReasoning,
    Delta,
    Message,
    ReasoningDelta,
    ToolArgumentsDelta,
    ToolCall,
    ToolCallBegin,
    ToolCallEnd,
    ToolCallFailed,
    collect,
    settled,
)
from jaxserve.chat_parsing.parser import ChatParser, parse
from jaxserve.chat_parsing.registry import REASONING_PARSERS, TOOL_CALL_PARSERS, Parsers, find_template, read_template_file
from jaxserve.chat_parsing.template import Reasoning, ResponseTemplate, load_template
from jaxserve.chat_parsing.tools import Tool, read_tools

__all__ = [
    "REASONING_PARSERS",
    "TOOL_CALL_PARSERS",
    "ChatParser",
    "ContentDelta",
    "ContentWasReasoning",
    "Delta",
    "Message",
    "Parsers",
    "Reasoning",
    "ReasoningDelta",
    "ResponseTemplate",
    "Thinking",
    "Tool",
    "ToolArgumentsDelta",
    "ToolCall",
    "ToolCallBegin",
    "ToolCallEnd",
    "ToolCallFailed",
    "ToolChoice",
    "collect",
    "ends_of_thinking",
    "find_template",
    "load_template",
    "parse",
    "read_template_file",
    "read_tools",
    "resolve_tool_choice",
    "response_grammar",
    "settled",
]
