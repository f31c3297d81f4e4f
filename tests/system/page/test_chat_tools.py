"""Tools on the chat page: the calculator, which the bundled model can call, and others, whose answers are scripted."""

from __future__ import annotations

import json
from typing import Any

from playwright.sync_api import expect

from tests.system.page.chat import Chat, calls

_CALCULATE = """async (expressions) => {
  const { calculate, written } = await import("/page/chat/calculator.js");
  return expressions.map((one) => {
    try { return written(calculate(one)); } catch (error) { return `Error: ${error.message}`; }
  });
}"""

WEATHER = json.dumps([{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}])
THOUGHT = "The **weather**: I have to ask."


def test_arithmetic(chat: Chat) -> None:
    table = {
        "1234 * 56": "69104", "0.1 + 0.2": "0.3", "2 + 3 * 4": "14", "(2 + 3) * 4": "20", "10 - 4 - 3": "3", "-2 ^ 2": "-4",
        "2 ^ 3 ^ 2": "512", "2 ** -1": "0.5", "7 % 4": "3", "6 / 4": "1.5", "3 × 4 ÷ 2 − 1": "5", "sqrt(16) + abs(-3)": "7",
        "round(2 * pi)": "6", "1.5e3": "1500", "ln(e)": "1",
        "1 / 0": "Error: division by zero", "": "Error: there is no expression", "2 +": "Error: the expression ends too early",
        "(1": "Error: a ) is missing", "1 2": "Error: 2 is not expected there", "alert(1)": "Error: alert is not expected there",
        "constructor": "Error: constructor is not expected there", "1; 2": 'Error: ";" is no arithmetic',
        "sqrt 4": "Error: sqrt needs parentheses",
        "9^9^9": "Error: the result is no finite number", "1" * 1001: "Error: the expression is longer than 1000 characters",
    }  # fmt: skip
    assert chat.page.evaluate(_CALCULATE, list(table)) == list(table.values())


def test_the_model_calls_the_calculator_and_the_page_answers(chat: Chat) -> None:
    page = chat.page
    chat.prefer(numbers={"temperature": 0})
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Calculator", exact=True).check()
    page.get_by_role("button", name="Close settings").click()
    expect(page.locator(".set")).to_have_text("tools")
    chat.send("What is 1234 * 56?")
    expect(chat.answers).to_have_count(2)
    chat.wait()
    call = chat.answers.first.get_by_label("Tool call")
    expect(call).to_contain_text("calculator")
    expect(call.get_by_label("Arguments")).to_contain_text('"expression": "1234 * 56"')
    expect(call.locator("samp")).to_have_text("69104")
    assert chat.text() == "69104"
    assert [message["role"] for message in chat.asked[-1]["messages"]] == ["user", "assistant", "tool"]
    page.reload()
    expect(chat.answers.first.locator("samp")).to_have_text("69104")


def test_other_tools_are_answered_by_hand(chat: Chat) -> None:
    chat.prefer(tools=WEATHER, calculator=True)
    chat.script(
        [{"reasoning_content": THOUGHT}, calls(("weather", '{"city": "Oslo"}'), ("calculator", '{"expression": "2+2"}'))],
        [{"content": "Rain, and 4."}],
    )
    chat.send("What is the weather in Oslo, and 2+2?")
    box = chat.page.get_by_label("Answer of weather")
    expect(box).to_be_visible()
    expect(chat.answers.first.locator("samp")).to_have_text("4")  # that of the calculator is there already
    assert len(chat.asked) == 1
    chat.page.reload()  # it waits for as long as it takes
    chat.script([{"content": "Rain, and 4."}])
    box.fill("rain")
    box.locator("xpath=..").get_by_role("button", name="Answer").click()
    expect(chat.answers).to_have_count(2)
    chat.wait()
    assert chat.text() == "Rain, and 4."
    *_, asking, first, second = chat.asked[-1]["messages"]
    assert [call["function"]["name"] for call in asking["tool_calls"]] == ["weather", "calculator"]
    assert asking["reasoning_content"] == THOUGHT
    assert {one["tool_call_id"]: one["content"] for one in (first, second)} == {"call_0": "rain", "call_1": "4"}

    thought = chat.answers.first.locator("details")
    expect(thought.locator(".blocks")).not_to_be_visible()
    thought.locator("summary").click()
    expect(thought.locator("strong")).to_have_text("weather")


def test_tools_are_not_called_for_ever(chat: Chat) -> None:
    chat.prefer(calculator=True)
    chat.script(*[[calls(("calculator", '{"expression": "1+1"}'))] for _ in range(30)])
    chat.send("Go on")
    expect(chat.answers).to_have_count(9)
    chat.wait()
    assert len(chat.asked) == 9  # the user's question, and eight rounds


def test_what_is_no_arithmetic_is_told_to_the_model(chat: Chat) -> None:
    chat.prefer(calculator=True)
    wrong = ["{", '{"expression": 7}', "null", '{"expression": "fetch(1)"}']
    chat.script(*[[calls(("calculator", arguments))] for arguments in wrong], [{"content": "Sorry."}])
    chat.send("Compute")
    expect(chat.answers).to_have_count(5)
    chat.wait()
    told: list[dict[str, Any]] = [message for message in chat.asked[-1]["messages"] if message["role"] == "tool"]
    assert len(told) == 4
    assert all(message["content"].startswith("Error: ") for message in told)
