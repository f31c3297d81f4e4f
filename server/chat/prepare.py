"""From what a chat asks for to a prompt, the form that the response must have, and what reads it."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from jaxserve.chat_parsing import ChatParser, ResponseTemplate, Tool, ToolChoice, read_tools, resolve_tool_choice
from jaxserve.engine.client import EngineClient
from jaxserve.errors import JaxserveError
from jaxserve.sampling.response import ResponseParams
from jaxserve.sampling.structured import StructuredOutputsParams
from jaxserve.types import Prompt, TokensPrompt
from server.chat.asked import AskedChat, AskedThinking, AskedTools
from server.chat.reading import ResponseReader
from server.chat.system_turns import with_system_turns
from server.unsupported.check import drop

_TAIL = 512  # tokens at the end of a prompt in which the assistant's turn begins, where it is opened there
_LONG_TAIL = 16_384  # and where it is gone on with

Begins = Literal["none", "maybe", "open"]
Structured = StructuredOutputsParams | ResponseParams | None


@dataclass(frozen=True, slots=True)
class PreparedChat:
    """What to compute, and how to read it.

    Attributes:
        structured_outputs: the form of the whole response.
        template: how to read it; None: its text is the answer.
        tools: that it may call.
        tail: the end of the prompt's text, in which the response may have begun.
        shows_thinking: whether the client gets to see it.
        short_ids: whether the chat template takes ids of calls of nine characters and no others.
        has_form: whether the form is one of the content, too.
    """

    prompt: Prompt
    structured_outputs: Structured
    template: ResponseTemplate | None = None
    tools: tuple[Tool, ...] = ()
    tail: str = ""
    shows_thinking: bool = True
    short_ids: bool = False
    has_form: bool = False

    def reader(self, id_prefix: str = "call_") -> ResponseReader:
        """Reads one sequence. Ids of calls that the model does not write itself begin so, where the template takes any."""
        parser: ChatParser | None = None
        if self.template is not None:
            parser = ChatParser(self.template, prompt=self.tail, tools=self.tools, has_form=self.has_form)
        return ResponseReader(parser, id_prefix, shows_thinking=self.shows_thinking, short_ids=self.short_ids)


async def prepare_chat(client: EngineClient, asked: AskedChat) -> PreparedChat:
    """Raises InvalidRequestError, with the names of chat completions' fields, ContextLengthError and others of render_chat."""
    choice = resolve_tool_choice(read_tools(asked.tools.tools), asked.tools.choice, parallel=asked.tools.parallel)
    template = client.response_template
    if choice.tools and (template is None or "tool_calls" not in template.fields):
        drop("tools", "nothing shows how this model writes calls, but --tool-call-parser can say it")
        asked, choice = replace(asked, tools=AskedTools()), ToolChoice(())
    thinks = template is not None and "reasoning" in template.fields
    arguments = _arguments(asked, choice, thinks=thinks)
    messages = await with_system_turns(client, asked.messages) if asked.folds_system else asked.messages
    prompt = await client.render_chat(messages, arguments)
    if template is None or not (choice.tools or thinks):
        return PreparedChat(prompt, asked.form.params)
    tail = _tail(client, prompt, goes_on=bool(asked.arguments.get("continue_final_message")))
    form: Structured = asked.form.params
    budget = _budget(asked.thinking)
    if choice.tools or form is not None or budget is not None:
        thinking: Begins = await _state(client, template, tail) if thinks else "none"
        if choice.tools or thinking != "none":
            form = ResponseParams(
                template=json.dumps(template.spec),
                thinking=thinking,
                max_thinking_tokens=budget if thinking != "none" else None,
                tools=_written(choice, asked.tools),
                required=choice.required,
                parallel=choice.parallel,
                content=asked.form.params,
            )
    source = client.chat_template or ""
    return PreparedChat(
        prompt,
        form,
        template,
        choice.tools,
        tail,
        asked.thinking.shown,
        short_ids="length != 9" in source,
        has_form=asked.form.params is not None,
    )


def _arguments(asked: AskedChat, choice: ToolChoice, *, thinks: bool) -> dict[str, Any]:
    """Variables of the chat template. Those that the client gives by name go first."""
    thinking = asked.thinking
    if (thinking.wanted or thinking.effort or thinking.budget) and not thinks:
        drop(thinking.param, "nothing shows how this model thinks, but --reasoning-parser can say it")
        thinking = AskedThinking()
    own: dict[str, Any] = {}
    if thinking.wanted is not None:
        own |= {"enable_thinking": thinking.wanted, "thinking": thinking.wanted}  # what templates of this year call it
    if thinking.effort is not None:
        own["reasoning_effort"] = thinking.effort
    if asked.tools.tools and asked.tools.choice != "none":  # a model that is shown none calls none
        own["tools"] = list(asked.tools.tools)
    return {**own, **asked.arguments}


def _budget(thinking: AskedThinking) -> int | None:
    """One that is not wanted and yet begins ends at once."""
    return 0 if thinking.wanted is False else thinking.budget


def _tail(client: EngineClient, prompt: Prompt, *, goes_on: bool) -> str:
    """The text at the end of a rendered prompt."""
    last = cast(TokensPrompt, prompt)["prompt_token_ids"][-(_LONG_TAIL if goes_on else _TAIL) :]
    return client.tokenizer.decode(last, skip_special_tokens=False)


async def _state(client: EngineClient, template: ResponseTemplate, tail: str) -> Begins:
    """Where in thinking the response begins."""
    if ChatParser(template, prompt=tail).in_reasoning:
        return "open"
    begun = template.tail(tail)
    if begun is None or begun.strip() or template.reasoning is None:  # an answer, or thinking that is over
        return "none"
    # A prompt opens the thinking of some models: those do not begin it by themselves.
    return "none" if await _prompt_opens(client, template) else "maybe"


async def _prompt_opens(client: EngineClient, template: ResponseTemplate) -> bool:
    arguments = {"enable_thinking": True, "thinking": True, "add_generation_prompt": True}
    try:
        prompt = await client.render_chat([{"role": "user", "content": "?"}], arguments)
    except JaxserveError:
        return False
    return ChatParser(template, prompt=_tail(client, prompt, goes_on=False)).in_reasoning


def _written(choice: ToolChoice, asked: AskedTools) -> str:
    """The tools that may be called, as ResponseParams has them."""
    if not choice.tools:
        return ""
    given = {tool["function"]["name"]: (tool["function"], path) for tool, path in zip(asked.tools, asked.paths, strict=True)}
    listed = []
    for tool in choice.tools:
        function, path = given[tool.name]
        strict = bool(function.get("strict"))
        listed.append({"name": tool.name, "parameters": tool.parameters, "strict": strict, "path": path})
    return json.dumps(listed)
