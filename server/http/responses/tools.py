"""Tools as clients of responses write them: flat."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from server.chat.asked import AskedTools
from server.http.tools import AsGiven, Mode, ToolName
from server.http.unions import described
from server.unsupported.notes import NOTES

# Types of tools that the platform of OpenAI or its clients run; newer versions of some have a date at the end.
_KNOWN_TYPES = (
    *("namespace", "custom", "web_search", "file_search", "code_interpreter", "image_generation", "mcp", "local_shell", "shell"),
    *("tool_search", "apply_patch", "computer_use", "computer"),
)


class FlatNamedTool(BaseModel):
    """The one that must be called."""

    model_config = ConfigDict(strict=True)

    type: Literal["function"]
    name: str = Field(description="the tool's")


class OtherTool(BaseModel):
    """A tool that is no function. The model is not offered it."""

    model_config = ConfigDict(strict=True, extra="allow")

    type: str = Field(description="custom, web_search, namespace, ...", json_schema_extra={"not": {"const": "function"}})


def _kind(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return "another tool" if isinstance(kind, str) and kind != "function" else "a function"


NamedItem = Annotated[
    Annotated[FlatNamedTool, Tag("a function")] | Annotated[OtherTool, Tag("another tool")], Discriminator(_kind)
]


class FlatAllowedTools(BaseModel):
    """Some of the tools, of which one may be called (auto) or must be (required)."""

    model_config = ConfigDict(strict=True)

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"] = Field(description="whether one must be called")
    tools: list[NamedItem] = Field(min_length=1, description="which; those that are no functions are left out")


ToolChoice = Annotated[
    Mode | FlatNamedTool | FlatAllowedTools,
    described("auto, none, required, {type: 'function', name: ...} or {type: 'allowed_tools', ...}"),
]


class FlatTool(AsGiven):
    """A function that the model may call."""

    model_config = ConfigDict(strict=True)

    type: Annotated[Literal["function"], described("function, or the type of another tool, which the model is not offered")]
    name: ToolName
    description: str | None = Field(None, description="what it does, for the model; not every chat template shows it")
    parameters: dict[str, Any] | None = Field(None, description="JSON schema of its arguments, an object; none by default")
    strict: bool | None = Field(
        None, description="refuse a schema that cannot be held to in all; without it such a tool is called with any arguments"
    )

    def as_chat(self) -> dict[str, Any]:
        """The same as chat completions have it."""
        return {"type": "function", "function": {name: value for name, value in self.given().items() if name != "type"}}


ToolItem = Annotated[Annotated[FlatTool, Tag("a function")] | Annotated[OtherTool, Tag("another tool")], Discriminator(_kind)]


class FlatToolFields(BaseModel):
    """What responses say of tools."""

    tools: list[ToolItem] | None = Field(
        None,
        description="functions that the model may call; tools of other types are accepted, but not offered to it",
    )
    tool_choice: ToolChoice | None = Field(None, description="auto by default: the model calls if it likes")
    parallel_tool_calls: bool | None = Field(None, description="whether there may be several calls, which is the default")

    def asked_tools(self) -> AskedTools:
        """The functions. The header and the log say which other tools have no effect."""
        notes = NOTES.get()
        for tool in self.tools or ():
            if isinstance(tool, OtherTool) and notes is not None:
                notes.warned(f"tools.{_known_type(tool.type)}")
        functions = list(self._functions())
        return AskedTools(
            tools=[tool.as_chat() for _, tool in functions],
            choice=self._choice(),
            parallel=self.parallel_tool_calls is not False,
            paths=[f"tools[{place}].parameters" for place, _ in functions],
        )

    def chosen(self) -> str | dict[str, Any] | None:
        """`tool_choice` as it was sent."""
        return self.tool_choice.model_dump() if isinstance(self.tool_choice, BaseModel) else self.tool_choice

    def tool_names(self) -> Mapping[str, str]:
        """For errors, what the client calls the members of tools that chat completions call otherwise."""
        members = ("name", "parameters")
        return {
            f"tools[{index}].function.{name}": f"tools[{place}].{name}"
            for index, (place, _) in enumerate(self._functions())
            for name in members
        }

    def _functions(self) -> Iterator[tuple[int, FlatTool]]:
        """With their places among all tools."""
        for place, tool in enumerate(self.tools or ()):
            if isinstance(tool, FlatTool):
                yield place, tool

    def _choice(self) -> str | dict[str, Any] | None:
        """`tool_choice` of the functions alone."""
        choice = self.tool_choice
        if not isinstance(choice, FlatAllowedTools):
            return self.chosen()
        allowed = [tool.model_dump() for tool in choice.tools if isinstance(tool, FlatNamedTool)]
        if not allowed and choice.mode == "auto":
            return "none"
        return {**choice.model_dump(), "tools": allowed}


def _known_type(kind: str) -> str:
    """A word for a header: the type without its date, where it is one of the known."""
    return next((known for known in _KNOWN_TYPES if kind.startswith(known)), "other")
