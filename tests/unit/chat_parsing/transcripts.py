"""Responses as models of each family write them, with the end of the prompt that they answer, and what they are."""

from dataclasses import dataclass

from jaxserve.chat_parsing import Message, ResponseTemplate, ToolCall, find_template

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather in a city.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "unit": {"enum": ["celsius", "fahrenheit"]},
                    "days": {"type": "integer"},
                },
                "required": ["city"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "write-file",
            "parameters": {
                "type": "object",
                "properties": {
                    "text": {"type": "string"},
                    "flags": {"type": "array", "items": {"type": "string"}},
                    "force": {"type": ["boolean", "null"]},
                    "mode": {"$ref": "#/$defs/Mode"},
                },
                "$defs": {"Mode": {"type": "object", "properties": {"bits": {"type": "integer"}}, "required": ["bits"]}},
                "required": ["text"],
            },
        },
    },
    {"type": "function", "function": {"name": "now"}},
]


@dataclass(frozen=True)
class Transcript:
    tool_call_parser: str
    text: str
    message: Message
    reasoning_parser: str = "none"
    prompt: str = ""
    shown_by: str = ""  # what the chat template has that tells variants of one name apart


def weather(arguments: str, call_id: str | None = None) -> ToolCall:
    return ToolCall("get_weather", arguments, call_id)


def _qwen_xml(tool_call: str, newline: str) -> str:
    return (
        f'<{tool_call}>\n<function=get_weather>\n<parameter=city>{newline}Paris "x"{newline}</parameter>\n'
        f"<parameter=days>{newline}3{newline}</parameter>\n</function>\n</{tool_call}>\n"
        f"<{tool_call}>\n<function=write-file>\n"
        f"<parameter=text>{newline}a\n\n</function>\n</{tool_call}> <b>{newline}</parameter>\n"
        f'<parameter=flags>{newline}["x", "y"]{newline}</parameter>\n<parameter=force>{newline}True{newline}</parameter>\n'
        f"<parameter=mode>{newline}{{'bits': 7}}{newline}</parameter>\n</function>\n</{tool_call}>"
    )


def _typed(closing: str) -> tuple[ToolCall, ...]:
    text = f"a\\n\\n{closing} <b>"
    return (
        weather('{"city": "Paris \\"x\\"", "days": 3}'),
        ToolCall("write-file", f'{{"text": "{text}", "flags": ["x", "y"], "force": true, "mode": {{"bits": 7}}}}'),
    )


TRANSCRIPTS = [
    Transcript(
        "hermes",
        "\nThe user wants </thin air>.\n</think>\n\nLet me look.\n"
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}\n</tool_call>\n'
        '<tool_call>\n{"name": "write-file", "arguments": {"text": "</tool_call>\\n\\"\\\\", "flags": []}}\n</tool_call>',
        Message(
            "The user wants </thin air>.",
            "Let me look.",
            (
                weather('{"city": "Paris", "days": 3}'),
                ToolCall("write-file", '{"text": "</tool_call>\\n\\"\\\\", "flags": []}'),
            ),
        ),
        "qwen3",
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n",
    ),
    Transcript(  # arguments first, in a string, and none; a call without the end of the thinking
        "hermes",
        '<think>I call.<tool_call>{"arguments": "{\\"city\\": \\"Rome\\"}", "note": {"a": ["]"]}, '
        '"name": "get_weather"}</tool_call>'
        '<tool_call>{"name": "now"}</tool_call><tool_call>[{"name": "now", "arguments": null}]</tool_call>',
        Message("I call.", None, (weather('{"city": "Rome"}'), ToolCall("now", "{}"), ToolCall("now", "{}"))),
        "qwen3",
    ),
    Transcript(
        "qwen3_coder",
        "I think.\n</think>\n\n" + _qwen_xml("tool_call", "\n"),
        Message("I think.", None, _typed("</function>\\n</tool_call>")),
        "qwen3",
        "<|im_start|>assistant\n<think>\n",
    ),
    Transcript(
        "seed_oss",
        "<seed:think>\nGot it.\n<seed:cot_budget_reflect>I have used 5 tokens.</seed:cot_budget_reflect></seed:think>\n"
        + _qwen_xml("seed:tool_call", ""),
        Message(
            "Got it.\n<seed:cot_budget_reflect>I have used 5 tokens.</seed:cot_budget_reflect>",
            None,
            _typed("</function>\\n</seed:tool_call>"),
        ),
        "seed_oss",
        "<seed:bos>assistant\n",
    ),
    Transcript(
        "llama3_json",
        '{"name": "get_weather", "parameters": {"city": "Paris"}}; {"type": "function", "name": "now", "parameters": {}}',
        Message(None, None, (weather('{"city": "Paris"}'), ToolCall("now", "{}"))),
        prompt="<|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    Transcript(
        "llama3_json",
        '<|python_tag|>{"name": "get_weather", "arguments": {"city": "Paris"}}',
        Message(None, None, (weather('{"city": "Paris"}'),)),
    ),
    Transcript("llama3_json", '{"answer": {"name": 42}} ', Message(None, '{"answer": {"name": 42}}')),
    Transcript(
        "mistral",
        '[THINK]So.[/THINK]On it.[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}[TOOL_CALLS]now[CALL_ID]abcDEF123[ARGS]{}',
        Message("So.", "On it.", (weather('{"city": "Paris"}'), ToolCall("now", "{}", "abcDEF123"))),
        "mistral",
        "[INST]Hi[/INST]",
        "[TOOL_CALLS][ARGS]",
    ),
    Transcript(
        "mistral",
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}, "id": "a"}, '
        '{"id": "abcDEF123", "name": "now", "arguments": {}}]',
        Message(None, None, (weather('{"city": "Paris"}'), ToolCall("now", "{}", "abcDEF123"))),
        shown_by="[TOOL_CALLS]",
    ),
    Transcript(
        "deepseek_v3",
        "I need tools.\n</think>\n\nChecking.<｜tool▁calls▁begin｜>"
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
        '{"city": "Paris"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>write-file\n```json\n'
        '{\n  "text": "```"\n}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        Message("I need tools.", "Checking.", (weather('{"city": "Paris"}'), ToolCall("write-file", '{\n  "text": "```"\n}'))),
        "deepseek_r1",
        "<｜User｜>Hi<｜Assistant｜><think>\n",
    ),
    Transcript(
        "deepseek_v31",
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Paris"}<｜tool▁call▁end｜>'
        "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        Message(None, None, (weather('{"city": "Paris"}'), ToolCall("now", "{}"))),
        "deepseek_v3",
        "<｜Assistant｜></think>",
    ),
    Transcript(
        "openai",
        "<|channel|>analysis<|message|>Need the weather.<|end|>"
        "<|start|>assistant<|channel|>commentary<|message|>I look it up.<|end|>"
        "<|start|>assistant<|channel|>analysis<|message|>Now.<|end|>"
        '<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Paris"}<|call|>',
        Message("Need the weather.\nNow.", "I look it up.", (weather('{"city": "Paris"}'),)),
        "openai_gptoss",
        "<|start|>user<|message|>Hi<|end|><|start|>assistant",
    ),
    Transcript(  # the recipient beside the role; the token that ends the call ends the response, and is no text
        "openai",
        ' to=functions.get_weather<|channel|>commentary json<|message|>{"city": "Paris"}',
        Message(None, None, (weather('{"city": "Paris"}'),)),
        "openai_gptoss",
        "<|start|>assistant",
    ),
    Transcript(
        "openai",
        "<|channel|>analysis<|message|>Easy.<|end|><|start|>assistant<|channel|>final<|message|>Hello!",
        Message("Easy.", "Hello!"),
        "openai_gptoss",
        "<|start|>assistant",
    ),
    Transcript("openai", "No header at all.", Message(None, "No header at all."), "openai_gptoss", "<|start|>assistant"),
    Transcript(
        "granite",
        "Here is my thought process:\nHm.\n\nHere is my response:\n"
        '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "now", "arguments": {}}]',
        Message("Hm.", None, (weather('{"city": "Paris"}'), ToolCall("now", "{}"))),
        "granite",
        "<|start_of_role|>assistant<|end_of_role|>",
    ),
    Transcript(
        "phi4_mini_json",
        'functools[{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "now", "parameters": {}}]',
        Message(None, None, (weather('{"city": "Paris"}'), ToolCall("now", "{}"))),
        shown_by="functools",
    ),
    Transcript(
        "phi4_mini_json",
        'Yes. <|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris"}}]<|/tool_call|>',
        Message(None, "Yes.", (weather('{"city": "Paris"}'),)),
        prompt="<|user|>Hi<|end|><|assistant|>",
    ),
    Transcript(
        "gemma4",
        '<|channel>thought\nPlan: call.<channel|><|tool_call>call:get_weather{city:<|"|>Par"is\\<|"|>,days:3}<tool_call|>'
        '<|tool_call>call:write-file{flags:[<|"|>a,}<|"|>],force:null,mode:{bits:-7},text:<|"|><tool_call|><|"|>}<tool_call|>',
        Message(
            "Plan: call.",
            None,
            (
                weather('{"city":"Par\\"is\\\\","days":3}'),
                ToolCall("write-file", '{"flags":["a,}"],"force":null,"mode":{"bits":-7},"text":"<tool_call|>"}'),
            ),
        ),
        "gemma4",
        "<|turn>user\nHi<turn|>\n<|turn>model\n",
    ),
    Transcript(
        "functiongemma",
        "<start_function_call>call:get_weather{city:<escape>Paris<escape>,days:3}<end_function_call>"
        "<start_function_call>call:now{}<end_function_call>",
        Message(None, None, (weather('{"city":"Paris","days":3}'), ToolCall("now", "{}"))),
        prompt="<start_of_turn>model\n",
    ),
    Transcript(
        "glm45",
        "\n<think>Weather.</think>\nSure.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n"
        "<arg_value>3</arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>",
        Message("Weather.", "Sure.", (weather('{"city": "Paris", "days": 3}'), ToolCall("now", "{}"))),
        "glm45",
        "<|user|>\nHi<|assistant|>",
    ),
    Transcript(
        "glm47",
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>北京 </arg_value>"
        "<arg_key>unknown</arg_key><arg_value>[1]</arg_value></tool_call>"
        "<tool_call>now</tool_call>",
        Message(None, None, (weather('{"city": "北京 ", "unknown": [1]}'), ToolCall("now", "{}"))),
        "glm47",
        "<|assistant|></think>",
    ),
    Transcript(
        "kimi_k2",
        "<think>Hm<|tool_calls_section_begin|>"
        '<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "Paris"}<|tool_call_end|>'
        "<|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        Message("Hm", None, (weather('{"city": "Paris"}', "functions.get_weather:0"), ToolCall("now", "{}", "functions.now:1"))),
        "kimi_k2",
        "<|im_assistant|>assistant<|im_middle|>",
    ),
    Transcript(
        "minimax_m2",
        "Think.\n</think>\n\nOK.\n<minimax:tool_call>\n"
        '<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\n<parameter name="days">3</parameter>\n</invoke>\n'
        '<invoke name="now">\n</invoke>\n</minimax:tool_call>',
        Message("Think.", "OK.", (weather('{"city": "Paris", "days": 3}'), ToolCall("now", "{}"))),
        "minimax_m2",
        "]~b]user\nHi[e~[\n]~b]ai\n<think>\n",
    ),
    Transcript(
        "olmo3",
        "Let me see.</think><function_calls>\nget_weather(city='L\\'Aquila', days=3)\n"
        'write-file(text="</function_calls>\\u00e9\\ud83d\\ude00\\x41", '
        "force=True, flags=['a', null], mode={\"bits\": 1})\n</function_calls>",
        Message(
            "Let me see.",
            None,
            (
                weather('{"city":"L\'Aquila", "days":3}'),
                ToolCall(
                    "write-file",
                    '{"text":"</function_calls>\\u00e9\\ud83d\\ude00A", "force":true, "flags":["a", null], "mode":{"bits": 1}}',
                ),
            ),
        ),
        "olmo3",
        "<|im_start|>assistant\n<think>",
    ),
    Transcript(
        "pythonic",
        "[get_weather(city='Paris', days=3), now()]",
        Message(None, None, (weather('{"city":"Paris", "days":3}'), ToolCall("now", "{}"))),
    ),
    Transcript(
        "deepseek_v32",
        "I look.\n</think>\n\nOne moment.\n\n<｜DSML｜function_calls>\n"
        '<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" string="true">Paris "x"</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
        '<｜DSML｜invoke name="write-file">\n<｜DSML｜parameter name="text" string="true">12</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="flags" string="false">["</｜DSML｜parameter>"]</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="force" string="false">null</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="unknown" string="true">7</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="other" string="false">7</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
        '<｜DSML｜invoke name="now">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
        Message(
            "I look.",
            "One moment.",
            (
                weather('{"city": "Paris \\"x\\"", "days": 3}'),
                ToolCall(
                    "write-file",
                    '{"text": "12", "flags": ["</｜DSML｜parameter>"], "force": null, "unknown": "7", "other": 7}',
                ),
                ToolCall("now", "{}"),
            ),
        ),
        "deepseek_r1",
        "<｜User｜>Hi<｜Assistant｜><think>\n",
    ),
    Transcript(
        "lfm2",
        'Checking.<|tool_call_start|>[get_weather(city="L\'Aquila", days=3), now()]<|tool_call_end|>',
        Message(None, "Checking.", (weather('{"city":"L\'Aquila", "days":3}'), ToolCall("now", "{}"))),
        prompt="<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    ),
    Transcript(
        "nemotron_json",
        'I call.\n</think>\n\n<TOOLCALL>[{"name": "get_weather", "arguments": {"city": "</TOOLCALL>"}}, '
        '{"name": "now", "arguments": {}}]</TOOLCALL>',
        Message("I call.", None, (weather('{"city": "</TOOLCALL>"}'), ToolCall("now", "{}"))),
        "nemotron_nano_v2",
        "<SPECIAL_11>Assistant\n<think>\n",
    ),
    Transcript(
        "cohere_command3",
        "<|START_THINKING|>I will look it up.<|END_THINKING|><|START_ACTION|>[\n"
        '    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Paris"}},\n'
        '    {"tool_call_id": "1", "tool_name": "now", "parameters": {}}\n]<|END_ACTION|>',
        Message("I will look it up.", None, (weather('{"city": "Paris"}', "0"), ToolCall("now", "{}", "1"))),
        "cohere_command3",
        "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
    ),
    Transcript(
        "cohere_command4",
        "Short.<|END_THINKING|><|START_TEXT|>It is sunny.<|END_TEXT|>",
        Message("Short.", "It is sunny."),
        "cohere_command4",
        "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|><|START_THINKING|>",
    ),
    Transcript(
        "xlam",
        'I look it up.\n```json\n[{"name": "get_weather", "arguments": {"city": "Paris"}}, '
        '{"name": "now", "arguments": {}}]\n```',
        Message(None, "I look it up.", (weather('{"city": "Paris"}'), ToolCall("now", "{}"))),
    ),
    Transcript("pythonic", "[1, 2] is a list", Message(None, "[1, 2] is a list")),
]


def template_of(transcript: Transcript) -> ResponseTemplate:
    template = find_template(
        transcript.shown_by, tool_call_parser=transcript.tool_call_parser, reasoning_parser=transcript.reasoning_parser
    )
    assert template is not None
    return template
