"""Tools and thinking as Anthropic's clients write them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from server.chat.asked import AskedThinking, AskedTools
from server.http.fields import told
from server.http.numbers import Integer
from server.http.tools import ToolName, one_budget
from server.http.unions import described

_NAMED: dict[str, Any] = {"not": {"properties": {"type": {"const": "tool"}, "name": {"type": "null"}}}}
Effort = Literal["low", "medium", "high", "xhigh", "max"]


class AnthropicTool(BaseModel):
    """A tool of the client's own. `cache_control` is ignored."""

    model_config = ConfigDict(strict=True)

    # The first field: what else is wrong with a tool of the server's does not matter.
    type: Annotated[
        Literal["custom"] | None, described("custom, or left out: only tools that the client itself runs are supported")
    ] = Field(None, description="custom, or nothing")
    name: ToolName
    description: str | None = Field(None, description="what it does, for the model")
    input_schema: dict[str, Any] = Field(description="JSON schema of its arguments, an object")
    strict: bool | None = Field(
        None, description="refuse a schema that cannot be held to in all; without it such a tool is called with any arguments"
    )

    def as_function(self) -> dict[str, Any]:
        function = {"name": self.name, "description": self.description, "parameters": self.input_schema, "strict": self.strict}
        return {"type": "function", "function": {name: value for name, value in function.items() if value is not None}}


class AnthropicToolChoice(BaseModel):
    """Whether to call a tool."""

    model_config = ConfigDict(strict=True, json_schema_extra=_NAMED)

    type: Literal["auto", "any", "tool", "none"] = Field(
        description="auto: if the model likes; any: some tool; tool: the one that is named; none: no tool"
    )
    name: str | None = Field(None, description="of the type tool: which tool")
    disable_parallel_tool_use: bool | None = Field(None, description="one call at most; by default there may be several")

    @model_validator(mode="after")
    def _has_name(self) -> AnthropicToolChoice:
        if self.type == "tool" and self.name is None:
            raise PydanticCustomError("nothing", "is required", {"param": "name"})
        return self

    def as_function(self) -> Any:
        if self.type == "tool":
            return {"type": "function", "function": {"name": self.name}}
        return "required" if self.type == "any" else self.type


class ThinkingConfig(BaseModel):
    """Whether to think before the answer."""

    model_config = ConfigDict(strict=True)

    type: Literal["enabled", "disabled", "adaptive"] = Field(description="adaptive: as the model likes, which is the default")
    budget_tokens: Integer | None = told("tokens of thinking at most; it is then ended in the model's own way", minimum=0)
    display: Literal["summarized", "omitted"] | None = Field(
        None, description="omitted: thinking blocks come empty; else they have all that was thought"
    )


def asked_tools(tools: Sequence[AnthropicTool], choice: AnthropicToolChoice | None) -> AskedTools:
    return AskedTools(
        tools=[tool.as_function() for tool in tools],
        choice=None if choice is None else choice.as_function(),
        parallel=choice is None or not choice.disable_parallel_tool_use,
        paths=[f"tools[{place}].input_schema" for place in range(len(tools))],
    )


def names_of_tools(tools: Sequence[AnthropicTool], choice: AnthropicToolChoice | None) -> dict[str, str]:
    """What the client calls the fields that errors about them name."""
    names = {f"tools[{place}].function.name": f"tools[{place}].name" for place in range(len(tools))}
    if choice is not None and choice.type == "tool":
        names["tool_choice"] = "tool_choice.name"
    return names


def asked_thinking(thinking: ThinkingConfig | None, effort: Effort | None) -> AskedThinking:
    """Raises InvalidRequestError for a negative budget."""
    kind = "adaptive" if thinking is None else thinking.type
    given = {} if thinking is None or thinking.budget_tokens is None else {"thinking.budget_tokens": thinking.budget_tokens}
    budget = one_budget(given)
    return AskedThinking(
        wanted=None if kind == "adaptive" else kind == "enabled",
        effort=effort,
        budget=None if kind == "disabled" else budget,
        shown=kind != "disabled",
        param="output_config.effort" if kind == "disabled" or thinking is None else "thinking",
    )
