"""Agent loops of unmodified libraries on a running server: `python scripts/agent_loops.py http://127.0.0.1:8000 [library ...]`.

Each asks the bundled model for a product that it cannot compute, gives it a calculator, runs the calls that it makes, and
expects the product as the answer; and has a sentence made into a typed object. A line is printed for each library; the exit
status tells whether all were right.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from pydantic import BaseModel

QUESTION, ANSWER = "What is 1234 * 56?", "69104"
SENTENCE = "Ada is 31 years old and lives in Oslo."
LONGEST = 4  # rounds of calls
LIKELIEST = {"temperature": 0}


class Person(BaseModel):
    """What the sentence says."""

    name: str
    age: int
    city: str


ADA = Person(name="Ada", age=31, city="Oslo")


class Wrong(Exception):
    """A library did not get what it should."""


def expect(found: Any, wanted: Any) -> None:
    if found != wanted:
        raise Wrong(f"got {found!r:.300} for {wanted!r}")


def calculate(expression: str) -> str:
    """The value of two whole numbers with + or - or * between them."""
    left, sign, right = expression.split()
    a, b = int(left), int(right)
    return str({"+": a + b, "-": a - b, "*": a * b}[sign])


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"expression": {"type": "string"}},
    "required": ["expression"],
    "additionalProperties": False,
}
FUNCTION: dict[str, Any] = {"name": "calculator", "description": "The value of an expression.", "parameters": SCHEMA}


async def with_openai(url: str, model: str, key: str) -> None:
    """Chat completions, streamed and not, and responses, streamed and not; `parse` of both."""
    import openai

    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key) as client:
        for stream in (False, True):
            expect(await _openai_chat(client, model, stream=stream), ANSWER)
            expect(await _openai_responses(client, model, stream=stream), ANSWER)
        asked: Any = [{"role": "user", "content": SENTENCE}]
        chat = await client.chat.completions.parse(model=model, messages=asked, response_format=Person, temperature=0)
        expect(chat.choices[0].message.parsed, ADA)
        response = await client.responses.parse(model=model, input=SENTENCE, text_format=Person, temperature=0)
        expect(response.output_parsed, ADA)


async def _openai_chat(client: Any, model: str, *, stream: bool) -> str | None:
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    tools = [{"type": "function", "function": {**FUNCTION, "strict": True}}]
    for _ in range(LONGEST):
        given = {"model": model, "messages": messages, "tools": tools, "temperature": 0}
        if stream:
            async with client.chat.completions.stream(**given) as events:
                message = (await events.get_final_completion()).choices[0].message
        else:
            message = (await client.chat.completions.create(**given)).choices[0].message
        if not message.tool_calls:
            return str(message.content)
        messages.append(message.model_dump(exclude_none=True, exclude={"parsed"}))
        for call in message.tool_calls:
            result = calculate(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return None


async def _openai_responses(client: Any, model: str, *, stream: bool) -> str | None:
    items: list[Any] = [{"role": "user", "content": QUESTION}]
    tools = [{"type": "function", **FUNCTION, "strict": True}]
    for _ in range(LONGEST):
        given = {"model": model, "input": items, "tools": tools, "temperature": 0}
        if stream:
            async with client.responses.stream(**given) as events:
                response = await events.get_final_response()
        else:
            response = await client.responses.create(**given)
        calls = [item for item in response.output if item.type == "function_call"]
        if not calls:
            return str(response.output_text)
        items += [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in response.output]
        for call in calls:
            result = calculate(**json.loads(call.arguments))
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": result})
    return None


async def with_anthropic(url: str, model: str, key: str) -> None:
    """Messages, streamed and not; and with thinking."""
    import anthropic

    async with anthropic.AsyncAnthropic(base_url=url, api_key=key) as client:
        for stream in (False, True):
            expect(await _anthropic(client, model, stream=stream), ANSWER)
        thinking: Any = {"type": "enabled", "budget_tokens": 64}
        asked: Any = [{"role": "user", "content": "What is 17 + 25?"}]
        message = await client.messages.create(
            model=model, messages=asked, max_tokens=200, thinking=thinking, extra_body=LIKELIEST
        )
        expect([block.type for block in message.content], ["thinking", "text"])
        expect(message.content[-1].text, "42")  # type: ignore[union-attr]


async def _anthropic(client: Any, model: str, *, stream: bool) -> str | None:
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    tools = [{"name": "calculator", "description": FUNCTION["description"], "input_schema": SCHEMA}]
    for _ in range(LONGEST):
        given = {"model": model, "messages": messages, "tools": tools, "max_tokens": 200, "extra_body": LIKELIEST}
        if stream:
            async with client.messages.stream(**given) as events:
                message = await events.get_final_message()
        else:
            message = await client.messages.create(**given)
        calls = [block for block in message.content if block.type == "tool_use"]
        if message.stop_reason != "tool_use":
            return "".join(block.text for block in message.content if block.type == "text")
        messages.append({"role": "assistant", "content": [block.model_dump() for block in message.content]})
        results = [{"type": "tool_result", "tool_use_id": call.id, "content": calculate(**call.input)} for call in calls]
        messages.append({"role": "user", "content": results})
    return None


async def with_litellm(url: str, model: str, key: str) -> None:
    import litellm

    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    given: dict[str, Any] = {"model": f"openai/{model}", "api_base": f"{url}/v1", "api_key": key, "temperature": 0}
    for _ in range(LONGEST):
        reply = await litellm.acompletion(**given, messages=messages, tools=[{"type": "function", "function": FUNCTION}])
        message = reply.choices[0].message
        if not message.tool_calls:
            expect(message.content, ANSWER)
            break
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls:
            result = calculate(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    asked = [{"role": "user", "content": SENTENCE}]
    typed = await litellm.acompletion(**given, messages=asked, response_format=Person)
    expect(Person.model_validate_json(typed.choices[0].message.content), ADA)


async def with_langchain(url: str, model: str, key: str) -> None:
    """`bind_tools`, `create_agent` and `with_structured_output`, of both kinds."""
    from langchain.agents import create_agent
    from langchain_openai import ChatOpenAI

    llm = ChatOpenAI(model=model, base_url=f"{url}/v1", api_key=key, temperature=0)

    def calculator(expression: str) -> str:
        """The value of an expression."""
        return calculate(expression)

    bound = await llm.bind_tools([calculator]).ainvoke(QUESTION)
    expect([(call["name"], call["args"]) for call in bound.tool_calls], [("calculator", {"expression": "1234 * 56"})])
    state = await create_agent(llm, [calculator]).ainvoke({"messages": [{"role": "user", "content": QUESTION}]})
    expect(state["messages"][-1].content, ANSWER)
    for method in ("json_schema", "function_calling"):
        expect(await llm.with_structured_output(Person, method=method).ainvoke(SENTENCE), ADA)


async def with_instructor(url: str, model: str, key: str) -> None:
    import instructor
    import openai

    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
        client = instructor.from_openai(openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key), mode=mode)
        asked: Any = [{"role": "user", "content": SENTENCE}]
        person = await client.chat.completions.create(model=model, messages=asked, response_model=Person, temperature=0)
        expect(Person.model_validate(person.model_dump()), ADA)


async def with_pydantic_ai(url: str, model: str, key: str) -> None:
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    llm = OpenAIChatModel(model, provider=OpenAIProvider(base_url=f"{url}/v1", api_key=key))
    agent = Agent(llm, model_settings={"temperature": 0})

    @agent.tool_plain  # type: ignore[untyped-decorator]
    def calculator(expression: str) -> str:
        """The value of an expression."""
        return calculate(expression)

    expect((await agent.run(QUESTION)).output, ANSWER)
    for output in (Person, NativeOutput(Person)):
        typed = Agent(llm, output_type=output, model_settings={"temperature": 0})
        expect((await typed.run(SENTENCE)).output, ADA)


async def with_openai_agents(url: str, model: str, key: str) -> None:
    """By chat completions and by responses, streamed and not."""
    import agents
    import openai

    agents.set_tracing_disabled(True)

    @agents.function_tool  # type: ignore[untyped-decorator]
    def calculator(expression: str) -> str:
        """The value of an expression."""
        return calculate(expression)

    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key)
    settings = agents.ModelSettings(temperature=0)
    for kind in (agents.OpenAIChatCompletionsModel, agents.OpenAIResponsesModel):
        llm = kind(model, client)
        agent = agents.Agent("calculating", model=llm, tools=[calculator], model_settings=settings)
        expect((await agents.Runner.run(agent, QUESTION)).final_output, ANSWER)
        streamed = agents.Runner.run_streamed(agent, QUESTION)
        async for _ in streamed.stream_events():
            pass
        expect(streamed.final_output, ANSWER)
        typed = agents.Agent("reading", model=llm, output_type=Person, model_settings=settings)
        expect((await agents.Runner.run(typed, SENTENCE)).final_output, ADA)


LIBRARIES: dict[str, Callable[[str, str, str], Awaitable[None]]] = {
    "openai": with_openai,
    "anthropic": with_anthropic,
    "litellm": with_litellm,
    "langchain": with_langchain,
    "instructor": with_instructor,
    "pydantic-ai": with_pydantic_ai,
    "openai-agents": with_openai_agents,
}


async def run(names: list[str], url: str, model: str, key: str) -> bool:
    """Whether all of the libraries got what they should."""
    right = True
    for name in names:
        try:
            await LIBRARIES[name](url, model, key)
        except Exception as error:  # the others are worth knowing, too
            right = False
            print(f"{name}: {type(error).__name__}: {error}", flush=True)
        else:
            print(f"{name}: right", flush=True)
    return right


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="of a server of the bundled model")
    parser.add_argument("libraries", nargs="*", help=f"of {', '.join(LIBRARIES)}; all by default")
    parser.add_argument("--api-key", default="none")
    args = parser.parse_args()
    names = args.libraries or list(LIBRARIES)
    return 0 if asyncio.run(run(names, args.url.rstrip("/"), "pico", args.api_key)) else 1


if __name__ == "__main__":
    sys.exit(main())
