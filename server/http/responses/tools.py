"""Tools as clients of responses write them: flat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from server.chat.asked import AskedTools
from server.http.tools import Mode, ToolName
from server.http.unions import described


class FlatNamedTool(BaseModel):
    """The one that must be called."""

    model_config = ConfigDict(strict=True)

    type: Literal["function"]
    name: str = Field(description="the tool's")


class FlatAllowedTools(BaseModel):
    """Some of the tools, of which one may be called (auto) or must be (required)."""

    model_config = ConfigDict(strict=True)

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"] = Field(description="whether one must be called")
    tools: list[FlatNamedTool] = Field(min_length=1, description="which")


ToolChoice = Annotated[
    Mode | FlatNamedTool | FlatAllowedTools,
    described("auto, none, required, {type: 'function', name: ...} or {type: 'allowed_tools', ...}"),
]


class FlatTool(BaseModel):
    """A function that the model may call."""

    model_config = ConfigDict(strict=True)

    type: Annotated[Literal["function"], described("function: tools are the client's to run, and no others are known here")]
    name: ToolName
    description: str | None = Field(None, description="what it does, for the model; not every chat template shows it")
    parameters: dict[str, Any] | None = Field(None, description="JSON schema of its arguments, an object; none by default")
    strict: bool | None = Field(
        None, description="refuse a schema that cannot be held to in all; without it such a tool is called with any arguments"
    )

    def as_chat(self) -> dict[str, Any]:
        """The same as chat completions have it."""
        return {"type": "function", "function": self.model_dump(exclude={"type"})}


class FlatToolFields(BaseModel):
    """What responses say of tools."""

    tools: list[FlatTool] | None = Field(None, description="functions that the model may call")
    tool_choice: ToolChoice | None = Field(None, description="auto by default: the model calls if it likes")
    parallel_tool_calls: bool | None = Field(None, description="whether there may be several calls, which is the default")

    def asked_tools(self) -> AskedTools:
        tools = [tool.as_chat() for tool in self.tools or ()]
        return AskedTools(
            tools=tools,
            choice=self.chosen(),
            parallel=self.parallel_tool_calls is not False,
            paths=[f"tools[{place}].parameters" for place in range(len(tools))],
        )

    def chosen(self) -> str | dict[str, Any] | None:
        """`tool_choice` as it was sent."""
        return self.tool_choice.model_dump() if isinstance(self.tool_choice, BaseModel) else self.tool_choice

    def tool_names(self) -> Mapping[str, str]:
        """For errors, what the client calls the members of tools that chat completions call otherwise."""
        places = range(len(self.tools or ()))
        members = ("name", "parameters")
        return {f"tools[{place}].function.{name}": f"tools[{place}].{name}" for place in places for name in members}
