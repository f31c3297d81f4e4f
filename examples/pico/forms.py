"""Answers of a given form: JSON whose keys a grammar writes, and thinking before an answer."""

import json
import re
from random import Random

from tasks import Source, Task, addition, digit_sort, draw_person, reversal, subtraction, uppercase
from tools import Turn, sum_question, system_turn

ASKING = ("", "", "", " Answer in JSON.", " Reply with JSON.", " As JSON.")
RESULTS = ("answer", "result", "value", "sum", "total", "solution", "output")
THINK, THOUGHT = "<think>\n", "\n</think>\n\n"


def json_turns(rng: Random, source: Source) -> list[Turn]:
    """A question, and its answer as an object, of which the values alone are to be predicted unless JSON is asked for.

    Keys come from the schema, which the model does not see: where none is given it would rather answer as ever.
    """
    asking = rng.choice(ASKING)
    if rng.random() < 0.5:
        task = rng.choice((addition, addition, subtraction, reversal, uppercase))(rng, source)
        number = task.kind in ("addition", "subtraction")
        values: dict[str, str | int] = {rng.choice(RESULTS): int(task.answer) if number else task.answer}
        prompt = task.prompt
    else:
        person = draw_person(rng, source)
        prompt, values = person.sentence, dict(person.values)
    answer = json.dumps(values)
    only = [] if asking else [json.dumps(value) for value in values.values()]
    return [Turn("user", prompt + asking), Turn("assistant", answer, learned=True, only=only)]


def thoughts(task: Task) -> str:
    """What one may think before the answer."""
    if task.kind in ("addition", "subtraction"):
        a, b = (int(number) for number in re.findall(r"\d+", task.prompt)[:2])
        if "from" in task.prompt:
            a, b = b, a
        return f"{a} {'+' if task.kind == 'addition' else '-'} {b} is {task.answer}."
    word = task.answer.lower() if task.kind == "uppercase" else task.answer[::-1]
    if task.kind == "digit_sort":
        word = next(iter(re.findall(r"\d+", task.prompt)))
    return f"The {'digits' if task.kind == 'digit_sort' else 'letters'} are {', '.join(word)}."


def thinking_turns(rng: Random, source: Source, system: str) -> list[Turn]:
    """A question that is thought about; the turn of the assistant has been opened with `<think>`."""
    if rng.random() < 0.3:
        question = sum_question(rng, source)
        opening = [system_turn(system, [question.tool]), Turn("user", question.prompt)]
        thought, answer, spelled = f'I use "{question.tool.name}".', question.call(), False
    else:
        task = rng.choice((addition, addition, subtraction, reversal, uppercase, digit_sort))(rng, source)
        opening = [*([Turn("system", system)] if system else []), Turn("user", task.prompt)]
        thought, answer, spelled = thoughts(task), task.answer, task.spelled
    thinking = [Turn("assistant", THINK, ends=False), Turn(None, thought + THOUGHT, learned=True, ends=False)]
    return [*opening, *thinking, Turn(None, answer, learned=True, spelled=spelled)]
