"""Tools and thinking as OpenAI's clients write them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ModelWrapValidatorHandler, PrivateAttr, model_validator

from jaxserve.errors import InvalidRequestError
from jaxserve.sampling.response import MAX_THINKING_TOKENS
from server.chat.asked import AskedThinking, AskedTools
from server.http.numbers import Integer
from server.http.unions import described

# read_tools checks it; the document of the API only tells it.
ToolName = Annotated[
    str, Field(description="letters, digits, _, - and .", json_schema_extra={"pattern": r"^[A-Za-z0-9_.\-]{1,128}$"})
]


class NamedFunction(BaseModel):
    """A tool by its name."""

    model_config = ConfigDict(strict=True)

    name: str = Field(description="the tool's")


class NamedTool(BaseModel):
    """The one that must be called."""

    model_config = ConfigDict(strict=True)

    type: Literal["function"]
    function: NamedFunction = Field(description="the function")


class AllowedTools(BaseModel):
    """Some of the tools, of which one may be called (auto) or must be (required)."""

    model_config = ConfigDict(strict=True)

    mode: Literal["auto", "required"] = Field(description="whether one must be called")
    tools: list[NamedTool] = Field(min_length=1, description="which")


class AllowedChoice(BaseModel):
    """Some of the tools."""

    model_config = ConfigDict(strict=True)

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools = Field(description="which, and whether one must be called")


Mode = Literal["auto", "none", "required"]
ToolChoice = Annotated[
    Mode | NamedTool | AllowedChoice,
    described("auto, none, required, {type: 'function', function: {name: ...}} or {type: 'allowed_tools', ...}"),
]


class Function(BaseModel):
    """A function that the model may call."""

    model_config = ConfigDict(strict=True)

    name: ToolName
    description: str | None = Field(None, description="what it does, for the model; not every chat template shows it")
    parameters: dict[str, Any] | None = Field(None, description="JSON schema of its arguments, an object; none by default")
    strict: bool | None = Field(
        None, description="refuse a schema that cannot be held to in all; without it such a tool is called with any arguments"
    )


class AsGiven(BaseModel):
    """An object that chat templates get as the client wrote it: members that are no fields here too, in their order."""

    _given: dict[str, Any] = PrivateAttr(default_factory=dict)

    @model_validator(mode="wrap")
    @classmethod
    def _keep(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        made = handler(value)
        if isinstance(value, dict):
            made._given = value
        return made

    def given(self) -> dict[str, Any]:
        return self._given or self.model_dump(exclude_unset=True)


class FunctionTool(AsGiven):
    """A tool of the client's own."""

    model_config = ConfigDict(strict=True)

    type: Literal["function"]
    function: Function = Field(description="the function")


class ToolFields(BaseModel):
    """What chat completions say of tools."""

    tools: list[FunctionTool] | None = Field(None, description="functions that the model may call")
    tool_choice: ToolChoice | None = Field(None, description="auto by default: the model calls if it likes")
    parallel_tool_calls: bool | None = Field(None, description="whether there may be several calls, which is the default")

    def asked_tools(self) -> AskedTools:
        tools = [tool.given() for tool in self.tools or ()]
        return AskedTools(
            tools=tools,
            choice=self.tool_choice.model_dump() if isinstance(self.tool_choice, BaseModel) else self.tool_choice,
            parallel=self.parallel_tool_calls is not False,
            paths=[f"tools[{place}].function.parameters" for place in range(len(tools))],
        )


class ThinkingObject(BaseModel):
    """Whether to think, and how much."""

    model_config = ConfigDict(strict=True)

    type: Literal["enabled", "disabled", "adaptive", "auto"]
    budget_tokens: Integer | None = Field(
        None, json_schema_extra={"minimum": 0}, description="tokens of thinking at most; it is then ended in the model's own way"
    )


class ThinkingFields(BaseModel):
    """What chat completions and responses say of thinking, in the words of clients of vLLM, SGLang and others."""

    reasoning_effort: str | None = Field(
        None, description="none, minimal, low, medium, high or another word that the model's chat template knows"
    )
    enable_thinking: bool | None = Field(None, description="whether to think before the answer; as the model likes by default")
    thinking: ThinkingObject | bool | None = Field(None, description="the same, and with how many tokens at most")
    thinking_token_budget: Integer | None = Field(
        None, json_schema_extra={"minimum": 0}, description="tokens of thinking at most; it is then ended in the model's own way"
    )
    max_thinking_tokens: Integer | None = Field(None, json_schema_extra={"minimum": 0}, description="thinking_token_budget")
    thinking_budget: Integer | None = Field(None, json_schema_extra={"minimum": 0}, description="thinking_token_budget")
    include_reasoning: bool | None = Field(None, description="whether the answer tells what was thought, which is the default")

    def efforts(self) -> dict[str, str]:
        """How much to think, under the names that say so; the first counts."""
        return {"reasoning_effort": self.reasoning_effort} if self.reasoning_effort else {}

    def budgets(self) -> dict[str, int]:
        """Tokens of thinking at most, under the names that say so."""
        given = {name: getattr(self, name) for name in ("thinking_token_budget", "max_thinking_tokens", "thinking_budget")}
        if isinstance(self.thinking, ThinkingObject):
            given["thinking.budget_tokens"] = self.thinking.budget_tokens
        return {name: budget for name, budget in given.items() if budget is not None}

    def asked_thinking(self) -> AskedThinking:
        """Raises InvalidRequestError for a budget that is out of bounds, or one that is said twice."""
        thinking, efforts, budgets = self.thinking, self.efforts(), self.budgets()
        wanted = self.enable_thinking
        if isinstance(thinking, bool):
            wanted = thinking
        elif thinking is not None:
            wanted = None if thinking.type in ("adaptive", "auto") else thinking.type == "enabled"
        effort = next(iter(efforts.values()), None)
        if effort is not None:
            wanted = effort != "none"
        asked = [*efforts, *(name for name in ("enable_thinking", "thinking") if getattr(self, name))]
        return AskedThinking(
            wanted=wanted,
            effort=None if effort == "none" else effort,
            budget=one_budget(budgets),
            shown=self.include_reasoning is not False,
            param=[*asked, *budgets, "reasoning_effort"][0],
        )


def one_budget(given: dict[str, int]) -> int | None:
    """The budget, which may have one of several names. Raises InvalidRequestError."""
    for name, value in given.items():
        if not 0 <= value <= MAX_THINKING_TOKENS:
            raise InvalidRequestError(f"{name} must be from 0 to {MAX_THINKING_TOKENS}, got {value}", param=name)
    if len(given) > 1:
        first, second, *_ = given
        raise InvalidRequestError(f"{second} cannot be given together with {first}", param=second)
    return next(iter(given.values()), None)
