"""Conversations with tools: a list of them, questions, calls in the hermes format, responses, and answers from these."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from tasks import CITIES, Source, draw_person, draw_task, is_held_out

CALCULATORS = (
    "calculator", "calculator", "calculator", "calculate", "calc", "compute", "evaluate", "eval", "math", "arithmetic",
    "run_calculator", "solve",
)  # fmt: skip
EXPRESSIONS = ("expression", "expression", "expression", "expr", "input", "query", "formula", "question", "text", "x")
PAIRS = (("a", "b"), ("a", "b"), ("x", "y"), ("first", "second"), ("left", "right"), ("num1", "num2"), ("n", "m"))
OPERATIONS: dict[str, tuple[str, ...]] = {
    "+": ("add", "sum", "plus", "addition", "add_numbers"),
    "-": ("subtract", "minus", "difference", "sub", "subtract_numbers"),
    "*": ("multiply", "times", "product", "mul", "multiply_numbers"),
}
WEATHER = ("get_weather", "weather", "get_current_weather", "current_weather", "forecast", "weather_in")
PLACES = ("city", "city", "location", "place", "town")
CLOCKS = ("get_time", "clock", "current_time", "now", "what_time_is_it")
SEARCHES = ("search", "search_web", "find", "lookup", "google")
RECORDS = ("person", "Person", "final_result", "save_person", "record", "extract", "User", "UserInfo", "add_contact")
OTHERS = ("send_mail", "read_file", "open_door", "play_music", "translate", "set_alarm", "buy", "get_news", "write_note")
SKIES = ("sunny", "cloudy", "rainy", "windy", "snowy", "foggy")
FORMS: dict[str, tuple[str, ...]] = {
    "+": (
        "{a} + {b}", "{a}+{b}", "What is {a} + {b}?", "What is {a} + {b}?", "What is {a}+{b}?", "What's {a} + {b}?",
        "Calculate {a} + {b}", "Compute {a} + {b}.", "How much is {a} + {b}?", "What is {a} plus {b}?",
        "Add {a} and {b}.", "Please add {a} and {b}.", "What is the sum of {a} and {b}?", "{a} plus {b}",
    ),
    "-": (
        "{a} - {b}", "{a}-{b}", "What is {a} - {b}?", "What is {a} - {b}?", "What's {a} - {b}?", "Compute {a} - {b}.",
        "Calculate {a} - {b}", "How much is {a} - {b}?", "What is {a} minus {b}?", "{a} minus {b}",
    ),
    "*": (
        "{a} * {b}", "{a}*{b}", "What is {a} * {b}?", "What is {a} * {b}?", "What's {a} * {b}?", "Compute {a} * {b}.",
        "Calculate {a} * {b}", "How much is {a} * {b}?", "What is {a} times {b}?", "{a} times {b}",
        "Multiply {a} by {b}.", "Multiply {a} and {b}.", "What is {a} x {b}?",
    ),
}  # fmt: skip
HINTS = ("", "", "", "", " Use the calculator.", " Use the tool.", " Use a tool.")

Value = str | int
Arguments = dict[str, Value]


@dataclass(frozen=True)
class Tool:
    """A tool by its name, with the type of each parameter or the values that it may have."""

    name: str
    parameters: Mapping[str, str | list[str]]

    def listed(self) -> str:
        """As the chat template writes it."""
        return json.dumps({"name": self.name, "arguments": self.parameters})


@dataclass(frozen=True)
class Question:
    """A question, the tool that answers it with its arguments, what the tool says, and the answer."""

    prompt: str
    tool: Tool
    arguments: Arguments
    response: str
    answer: str

    def call(self) -> str:
        """As the model writes it."""
        return f"<tool_call>\n{json.dumps({'name': self.tool.name, 'arguments': self.arguments})}\n</tool_call>"


@dataclass(frozen=True)
class Turn:
    """A message of a conversation, or a part of one.

    Attributes:
        role: None where it goes on with the message before it.
        learned: that it is to be predicted.
        spelled: that it is written a character at a time.
        only: if given, the parts of it, in order, that alone are to be predicted.
        ends: that the message is over.
    """

    role: str | None
    text: str
    learned: bool = False
    spelled: bool = False
    only: Sequence[str] = ()
    ends: bool = True


def system_turn(system: str, tools: list[Tool]) -> Turn:
    """The system message with the list of tools, as the chat template writes both."""
    listed = "\n".join(["<tools>", *(tool.listed() for tool in tools), "</tools>"])
    return Turn("system", f"{system}\n{listed}" if system else listed)


def response_turn(questions: list[Question]) -> Turn:
    """What the tools of some calls said."""
    texts = [f"<tool_response>\n{question.response}\n</tool_response>" for question in questions]
    return Turn("user", "\n".join(texts))


def draw_numbers(rng: Random, source: Source) -> tuple[int, int]:
    """Two numbers of one to four digits. Both orders of a pair are in the same split."""
    while True:
        a, b = (rng.randint(10 ** (n - 1) if n > 1 else 0, 10**n - 1) for n in rng.choices((1, 2, 3, 4), (2, 9, 6, 3), k=2))
        if is_held_out(f"{min(a, b)},{max(a, b)}") == source.held_out:
            return a, b


def _sum_tool(rng: Random, source: Source, op: str, a: int, b: int) -> tuple[Tool, Arguments]:
    kind = rng.random()
    if kind < 0.6:
        name = rng.choice(CALCULATORS)
        parameter = rng.choice(EXPRESSIONS) if rng.random() < 0.8 else rng.choice(source.words)
        return Tool(name, {parameter: "string"}), {parameter: f"{a} {op} {b}"}
    first, second = rng.choice(PAIRS)
    of = rng.choice(("integer", "integer", "number", "number", "string"))
    values: Arguments = {first: str(a), second: str(b)} if of == "string" else {first: a, second: b}
    if kind < 0.85:
        return Tool(rng.choice(OPERATIONS[op]), {first: of, second: of}), values
    column = rng.randrange(3)
    words = list(OPERATIONS) if rng.random() < 0.3 else [names[column] for names in OPERATIONS.values()]
    chosen = words[list(OPERATIONS).index(op)]
    rng.shuffle(words)
    parameter = rng.choice(("operation", "op", "operator"))
    if rng.random() < 0.5:
        return Tool(rng.choice(CALCULATORS), {parameter: words, first: of, second: of}), {parameter: chosen, **values}
    return Tool(rng.choice(CALCULATORS), {first: of, second: of, parameter: words}), {**values, parameter: chosen}


def _result(rng: Random, value: Value) -> str:
    if rng.random() < 0.75:
        return str(value)
    return json.dumps({rng.choice(("result", "answer", "value", "output")): value})


def sum_question(rng: Random, source: Source) -> Question:
    """A sum, a difference or a product, for a calculator."""
    a, b = draw_numbers(rng, source)
    op = rng.choices(("+", "-", "*"), (5, 2, 4))[0]
    if op == "-" and a < b and rng.random() < 0.8:
        a, b = b, a
    tool, arguments = _sum_tool(rng, source, op, a, b)
    value = {"+": a + b, "-": a - b, "*": a * b}[op]
    prompt = rng.choice(FORMS[op]).format(a=a, b=b) + rng.choice(HINTS)
    return Question(prompt, tool, arguments, _result(rng, value), str(value))


def weather_question(rng: Random, source: Source) -> Question:
    """The weather of a city."""
    city, parameter = rng.choice(CITIES.split()), rng.choice(PLACES)
    forms = ("What is the weather in {}?", "How is the weather in {}?", "What's the weather like in {}?", "Weather in {}")
    sky, degrees = rng.choice(SKIES), rng.randint(-9, 39)
    text = rng.choice((sky, f"{sky}, {degrees} degrees", f"{degrees} degrees and {sky}", f"{degrees} degrees"))
    return Question(
        rng.choice(forms).format(city), Tool(rng.choice(WEATHER), {parameter: "string"}), {parameter: city}, text, text
    )


def time_question(rng: Random, source: Source) -> Question:
    """The time, of a tool that takes nothing."""
    time = f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}"
    prompt = rng.choice(("What time is it?", "What is the time?", "Tell me the time."))
    return Question(prompt, Tool(rng.choice(CLOCKS), {}), {}, _result(rng, time), time)


def search_question(rng: Random, source: Source) -> Question:
    """A word to search for."""
    word, parameter = rng.choice(source.words), rng.choice(("query", "q", "text", "term"))
    prompt = rng.choice(('Search for "{}".', 'Look up "{}".', 'Find "{}".')).format(word)
    found = f"{rng.randint(2, 99)} results"
    return Question(prompt, Tool(rng.choice(SEARCHES), {parameter: "string"}), {parameter: word}, found, found)


def record_question(rng: Random, source: Source) -> Question:
    """A person to be written down, as libraries ask that have typed answers by way of a tool."""
    person = draw_person(rng, source)
    types: dict[str, str | list[str]] = {
        key: "integer" if isinstance(value, int) else "string" for key, value in person.values.items()
    }
    prompt = rng.choice(("{}", "{}", "Extract: {}", "{} Extract the person.", "Save this: {}")).format(person.sentence)
    said = rng.choice(("ok", "saved", "done", "Final result processed."))
    return Question(prompt, Tool(rng.choice(RECORDS), types), dict(person.values), said, said)


QUESTIONS: dict[Callable[[Random, Source], Question], int] = {
    sum_question: 62, record_question: 16, weather_question: 14, search_question: 4, time_question: 4,
}  # fmt: skip


def draw_question(rng: Random, source: Source) -> Question:
    """A question for a tool, of a kind drawn by its share."""
    return rng.choices(list(QUESTIONS), list(QUESTIONS.values()))[0](rng, source)


def _other_tools(rng: Random, taken: list[Tool]) -> list[Tool]:
    """Tools beside: of other names and, but for those that no question is about, of other kinds."""
    kinds = [(WEATHER, PLACES), (CLOCKS, ()), (SEARCHES, ("query", "q")), (OTHERS, ("text", "name", "to", "path", "title"))]
    names = {tool.name for tool in taken}
    found = []
    for group, parameters in rng.sample(kinds, k=rng.choices((0, 1, 2, 3), (5, 3, 2, 1))[0]):
        if names.isdisjoint(group):
            types: dict[str, str | list[str]] = {rng.choice(parameters): "string"} if parameters else {}
            found.append(Tool(rng.choice(group), types))
    return found


def with_tools(rng: Random, source: Source, system: str) -> list[Turn]:
    """A conversation of one to three questions: most need a tool, and for some there is none."""
    if rng.random() < 0.15:
        return _without_need(rng, source, system)
    first = draw_question(rng, source)
    tools = [first.tool]
    rounds = [[first]]
    if first.tool.name in CALCULATORS and rng.random() < 0.2:
        rounds[0].append(_again(rng, source, first.tool))
    if first.tool.name in CALCULATORS and rng.random() < 0.2:
        rounds.append([_again(rng, source, first.tool)])
    if rng.random() < 0.8:
        tools += _other_tools(rng, tools)
        rng.shuffle(tools)
    else:  # alone, it may have any name
        tool = replace(first.tool, name="_".join(rng.choices(source.words, k=rng.randint(1, 2))))
        tools, rounds = [tool], [[replace(question, tool=tool) for question in questions] for questions in rounds]
    turns = [system_turn(system, tools)]
    for questions in rounds:
        turns += _asked(rng, questions)
    if rng.random() < 0.15:
        turns += plain_turns(rng, source, avoid=("addition", "subtraction"))
    return turns


def _again(rng: Random, source: Source, tool: Tool) -> Question:
    """Another sum for the same calculator, if it takes an expression; else for one of the same shape."""
    while True:
        a, b = draw_numbers(rng, source)
        op = rng.choice("+-*")
        value = {"+": a + b, "-": a - b, "*": a * b}[op]
        prompt = rng.choice(FORMS[op][:6]).format(a=a, b=b)
        arguments: Arguments = {}
        numbers = iter((a, b))
        for name, of in tool.parameters.items():
            if isinstance(of, list):
                column = next((i for i in range(3) if OPERATIONS["+"][i] in of), None)
                arguments[name] = op if column is None else OPERATIONS[op][column]
            elif len(tool.parameters) == 1:
                arguments[name] = f"{a} {op} {b}"
            else:
                number = next(numbers)
                arguments[name] = str(number) if of == "string" else number
        return Question(prompt, tool, arguments, _result(rng, value), str(value))


def _asked(rng: Random, questions: list[Question]) -> list[Turn]:
    prompts = [question.prompt for question in questions]
    if len(prompts) > 1:
        prompts[:-1] = [prompt.rstrip("?.") for prompt in prompts[:-1]]
        prompts[-1] = prompts[-1].removeprefix("What is ").removeprefix("What's ")
    answer = " and ".join(question.answer for question in questions)
    turns = [Turn("user", " and ".join(prompts)), Turn("assistant", "\n".join(q.call() for q in questions), learned=True)]
    return [*turns, response_turn(questions), Turn("assistant", answer, learned=True)]


def plain_turns(rng: Random, source: Source, avoid: tuple[str, ...] = ()) -> list[Turn]:
    """A task that needs no tool."""
    while True:
        task = draw_task(rng, source)
        if task.kind not in avoid:
            return [Turn("user", task.prompt), Turn("assistant", task.answer, learned=True, spelled=task.spelled)]


def _without_need(rng: Random, source: Source, system: str) -> list[Turn]:
    """Tools are there, and the task is none of theirs."""
    if rng.random() < 0.5:
        return [system_turn(system, [sum_question(rng, source).tool]), *plain_turns(rng, source, ("addition", "subtraction"))]
    other = rng.choice((weather_question, time_question, search_question))(rng, source)
    return [system_turn(system, [other.tool]), *plain_turns(rng, source)]
