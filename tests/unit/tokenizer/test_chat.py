"""Chat templates: what they see, where they come from, and that every failure is the request's."""

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from jaxserve.errors import CheckpointError, InvalidRequestError
from jaxserve.tokenizer.chat import ChatTemplate
from jaxserve.tokenizer.load import load_tokenizer
from jaxserve.tokenizer.texts import THREADS, TextTools, ThreadTexts
from tests.data.tokenizers.samples import write_json

SIMPLE = (
    "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}</>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
PICO = Path(__file__).resolve().parents[3] / "jaxserve" / "assets" / "pico"
HELLO = [{"role": "user", "content": "hello"}]


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, special_tokens={"bos_token": "<s>"}, now=lambda: datetime(2024, 7, 26, 10, 30, tzinfo=UTC))


def loaded_from(path: Path, override: Path | None = None) -> ChatTemplate:
    loaded = ChatTemplate.load(path, override)
    assert loaded is not None
    return loaded


def refusal(source: str, messages: Any = HELLO, **options: Any) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        template(source).render(messages, **options)
    assert "\n" not in caught.value.message
    return caught.value


def test_conversation_ends_with_the_assistants_turn_unless_told_otherwise() -> None:
    assert template(SIMPLE).render(HELLO) == "<s><user>hello</>\n<assistant>"
    assert template(SIMPLE).render(HELLO, add_generation_prompt=False) == "<s><user>hello</>\n"


@pytest.mark.format("chat", "parts of other types than text", "refused")
def test_text_parts_are_joined_and_others_refused_by_type() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert "<user>a\nb</>" in template(SIMPLE).render([{"role": "user", "content": parts}])
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]
    error = refusal(SIMPLE, image)
    assert error.param == "messages"
    assert error.message == "messages[0].content has a part of type 'image_url'; only 'text' is supported"


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "must not be empty"),
        (["hi"], r"messages[0] must be an object with a role"),
        ([{"content": "hi"}], r"messages[0] must be an object with a role"),
        ([*HELLO, {"role": "user"}], r"messages[1].content must be a string"),
        ([{"role": "user", "content": 5}], r"messages[0].content must be a string"),
        ([{"role": "user", "content": ["hi"]}], "has a part of type 'str'"),
        ([{"role": "user", "content": [{"type": "text"}]}], "has a text part without a text"),
    ],
)
def test_messages_of_another_shape_are_refused(messages: object, message: str) -> None:
    assert message in refusal(SIMPLE, messages).message


def test_messages_are_not_changed() -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "well"}]
    template(SIMPLE).render(messages, add_generation_prompt=False, continue_final_message=True)
    assert messages[1] == {"role": "assistant", "content": "well"}


def test_white_space_loop_controls_and_json_are_as_hugging_face_has_them() -> None:
    source = """
    {% for m in messages %}
    {% if loop.index == 2 %}{% break %}{% endif %}
{{ m | tojson }}
    {% endfor %}
{{ {'b': '<é>', 'a': 1} | tojson(indent=1, sort_keys=true) }}"""
    assert template(source).render(HELLO * 3) == ('\n{"role": "user", "content": "hello"}\n{\n "a": 1,\n "b": "<é>"\n}')


def test_variables_of_the_request_and_the_date() -> None:
    source = "{{ strftime_now('%d %b %Y') }} {{ thinking }} {{ tools is none }} {{ documents is none }} {{ nothing }}"
    assert template(source).render(HELLO, arguments={"thinking": True}) == "26 Jul 2024 True True True "
    assert "tool" in template("{{ tools[0].name }}").render(HELLO, arguments={"tools": [{"name": "tool"}]})


def test_generation_blocks_only_group() -> None:
    source = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    assert template(source).render(HELLO) == "hello"


@pytest.mark.parametrize("name", ["messages", "add_generation_prompt", "continue_final_message"])
def test_reserved_variables_are_refused(name: str) -> None:
    assert refusal(SIMPLE, arguments={name: 1}).param == "chat_template_kwargs"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('roles must\n alternate') }}", "refuses these messages: roles must alternate"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "'append' of 'list' object is unsafe"),
        ("{{ nobody.home }}", "'nobody' is undefined"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ messages[0]['content'] + 1 }}", "concatenate"),
        ("{{ range(10 ** 9) | list }}", "Range too big"),
    ],
)
def test_every_failure_of_a_template_is_the_requests(source: str, message: str) -> None:
    error = refusal(source)
    assert message in error.message
    assert error.param == "messages"


@pytest.mark.parametrize(
    ("content", "ending"), [("{{ m.content }}", "I am  "), ("{{ m.content | trim }}", "I am"), ("{{ m.content }} ", "I am  ")]
)
def test_final_message_is_continued(content: str, ending: str) -> None:
    source = SIMPLE.replace("{{ m.content }}", content)
    messages = [*HELLO, {"role": "assistant", "content": "I am  "}]
    text = template(source).render(messages, add_generation_prompt=False, continue_final_message=True)
    assert text.endswith(f"<assistant>{ending}")
    assert text.startswith("<s><user>hello")


def test_final_message_that_is_left_out_cannot_be_continued() -> None:
    options = {"add_generation_prompt": False, "continue_final_message": True}
    assert "leaves out the final message" in refusal("{{ bos_token }}", **options).message
    assert refusal(SIMPLE, continue_final_message=True).param == "continue_final_message"


def test_invalid_template_is_the_checkpoints_fault() -> None:
    with pytest.raises(CheckpointError, match="not valid Jinja"):
        template("{% for %}")


@pytest.mark.format("chat", "`chat_template` in tokenizer_config.json, chat_template.jinja", "read")
def test_where_a_template_comes_from(tmp_path: Path) -> None:
    assert ChatTemplate.load(tmp_path) is None
    config = tmp_path / "tokenizer_config.json"
    write_json(config, {"bos_token": {"content": "<b>"}, "chat_template": "config {{ bos_token }}"})
    assert loaded_from(tmp_path).render(HELLO) == "config <b>"
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "named {{ bos_token }}"}]
    write_json(config, {"bos_token": "<b>", "chat_template": named})
    assert loaded_from(tmp_path / "tokenizer.json").render(HELLO) == "named <b>"
    (tmp_path / "chat_template.jinja").write_text("file {{ bos_token }}")
    assert loaded_from(tmp_path).render(HELLO) == "file <b>"
    override = tmp_path / "mine.jinja"
    with pytest.raises(CheckpointError, match=r"mine\.jinja does not exist"):
        ChatTemplate.load(tmp_path, override=override)
    override.write_text("mine")
    assert loaded_from(tmp_path, override=override).render(HELLO) == "mine"


@pytest.mark.parametrize("value", [5, [{"name": "default"}], ["x"]])
def test_template_of_another_shape_is_the_checkpoints_fault(tmp_path: Path, value: object) -> None:
    write_json(tmp_path / "tokenizer_config.json", {"chat_template": value})
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json: chat_template is neither"):
        ChatTemplate.load(tmp_path)


def test_conversations_with_tools_have_a_template_of_their_own(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "tools {{ tools[0] }}"}, {"name": "default", "template": "plain"}]
    write_json(tmp_path / "tokenizer_config.json", {"chat_template": named})
    loaded = loaded_from(tmp_path)
    assert loaded.source == loaded.render(HELLO) == loaded.render(HELLO, arguments={"tools": None}) == "plain"
    assert loaded.render(HELLO, arguments={"tools": ["saw"]}) == "tools saw"


@pytest.mark.format("chat", "named templates: a list, or files in additional_chat_templates/", "read")
def test_named_templates_in_files(tmp_path: Path) -> None:
    """Files win over tokenizer_config.json, all of them together."""
    write_json(tmp_path / "tokenizer_config.json", {"chat_template": [{"name": "tool_use", "template": "config"}]})
    with pytest.raises(CheckpointError, match=r"of the chat templates \['tool_use'\], none is called default"):
        ChatTemplate.load(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("file")
    assert loaded_from(tmp_path).render(HELLO, arguments={"tools": []}) == "file"
    folder = tmp_path / "additional_chat_templates"
    folder.mkdir()
    (folder / "tool_use.jinja").write_text("file with tools")
    (folder / "rag.jinja").write_text("{% another language")
    loaded = loaded_from(tmp_path)
    assert (loaded.render(HELLO), loaded.render(HELLO, arguments={"tools": []})) == ("file", "file with tools")
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(CheckpointError, match=r"chat_template\.jinja cannot be read"):
        ChatTemplate.load(tmp_path)


@pytest.mark.parametrize(
    "loop",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{% for b in range(99999) if b < 0 %}{% endfor %}{% endfor %}",
        "{% macro twice(n) %}{% if n %}{{ twice(n - 1) }}{{ twice(n - 1) }}{% endif %}{% endmacro %}{{ twice(60) }}",
        "{% set two = [1, 2] %}{% for x in two recursive %}{% if loop.depth < 60 %}{{ loop(two) }}{% endif %}{% endfor %}",
        "{% macro of() %}{{ caller() }}{{ caller() }}{% endmacro %}" + "{% call of() %}" * 60 + "x" + "{% endcall %}" * 60,
        "".join(f"{{% block b{n} %}}{{{{ self.b{n + 1}() }}}}{{{{ self.b{n + 1}() }}}}{{% endblock %}}" for n in range(60))
        + "{% block b60 %}{% endblock %}",
    ],
    ids=["loops", "filtered", "macro", "recursive", "caller", "blocks"],
)
def test_a_template_that_does_not_end_is_refused(loop: str) -> None:
    """By its own thread: what repeats looks at the clock. The thread, and the template, are as good as before."""
    looping = ChatTemplate("{% if loops %}" + loop + "{% endif %}" + SIMPLE, special_tokens={}, seconds=0.05)
    with pytest.raises(InvalidRequestError, match=r"takes more than the 0\.05 s of processor time") as caught:
        looping.render(HELLO, arguments={"loops": True})
    assert caught.value.param == "messages"
    assert looping.render(HELLO) == "<user>hello</>\n<assistant>"


async def test_conversations_that_loop_leave_the_threads_to_others() -> None:
    loop = "{% if loops %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}{% endif %}"
    texts = ThreadTexts(TextTools(load_tokenizer(PICO), ChatTemplate(loop + SIMPLE, special_tokens={}, seconds=0.05)))
    endings = await asyncio.gather(*(texts.render(HELLO, {"loops": True}) for _ in range(2 * THREADS)), return_exceptions=True)
    assert {type(ending) for ending in endings} == {InvalidRequestError}
    assert await texts.render(HELLO, {}) == texts.tools.tokenizer.encode("<user>hello</>\n<assistant>", add_special_tokens=False)
    await texts.close()


READS_PARTS = {
    "loops": "{% for m in messages %}{% for part in m['content'] %}[{{ part.text }}]{% endfor %}{% endfor %}",
    "filters": "{% for m in messages %}{% for part in m.content | selectattr('type', 'equalto', 'text') %}[{{ part.text }}]"
    "{% endfor %}{% endfor %}",
    "assigned": "{% for m in messages %}{% set said = m.content %}{% for part in said %}[{{ part.text }}]{% endfor %}"
    "{% endfor %}",
    "macro": "{% macro show(content) %}{% for part in content %}[{{ part['text'] }}]{% endfor %}{% endmacro %}"
    "{% for m in messages %}{{ show(m.content) }}{% endfor %}",
    "by number": "{% for m in messages %}[{{ m['content'][0]['text'] }}][{{ m['content'][1]['text'] }}]{% endfor %}",
}


@pytest.mark.format("chat", "contents that are lists of text parts, for templates that read lists; joined for others", "read")
@pytest.mark.parametrize("kind", READS_PARTS)
def test_templates_that_read_parts_get_them(kind: str) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert template(READS_PARTS[kind]).render([{"role": "user", "content": parts}]) == "[a][b]"
    continued = template(READS_PARTS[kind]).render(
        [{"role": "user", "content": parts}], add_generation_prompt=False, continue_final_message=True
    )
    assert continued == "[a][b"


@pytest.mark.format("chat", "arguments of earlier tool calls, as objects or as JSON text", "read")
def test_arguments_of_calls_are_objects_for_templates() -> None:
    source = "{% for m in messages %}{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"

    def render(arguments: Any) -> str:
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
        return template(source).render([{"role": "assistant", "content": None, "tool_calls": [call]}])

    assert render('{"a": 1}') == render({"a": 1}) == '{"a": 1}'
    assert render("") == "{}"
    for wrong in ("{", "[1]", "1"):
        with pytest.raises(
            InvalidRequestError, match=r"messages\[0\]\.tool_calls\[0\]\.function\.arguments must be the JSON text"
        ):
            render(wrong)


@pytest.mark.format("chat", "chat_template.json of a processor", "read")
def test_a_template_of_a_processor_is_the_last_resort(tmp_path: Path) -> None:
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "processor"}))
    assert loaded_from(tmp_path).render(HELLO) == "processor"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "tokenizer"}))
    assert loaded_from(tmp_path).render(HELLO) == "tokenizer"
