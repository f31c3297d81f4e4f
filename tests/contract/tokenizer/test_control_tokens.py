"""Control tokens that users, tools and documents spell out are text, with every kind of tokenizer."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from jaxserve.errors import InvalidRequestError
from jaxserve.tokenizer.base import Tokenizer
from jaxserve.tokenizer.chat import ChatTemplate
from jaxserve.tokenizer.control_tokens import MARK, ControlTokens
from jaxserve.tokenizer.load import load_tokenizer
from tests.data.tokenizers import families
from tests.data.tokenizers.samples import KINDS, LOSSLESS, sample

Messages = Sequence[Mapping[str, Any]]
NAMES = [*families.FAMILIES, *KINDS]


@dataclass(frozen=True)
class Case:
    """A tokenizer with a template that writes `begin` and `end` around each message."""

    name: str
    tokenizer: Tokenizer
    begin: str
    end: str

    def template(self, content: str = "m.content", *, guarded: bool = True) -> ChatTemplate:
        source = (
            f"{{% for m in messages %}}{self.begin}{{{{ m.role }}}}\n{{{{ m.name }}}} {{{{ {content} }}}}{self.end}{{% endfor %}}"
            "{{ tools | tojson if tools }}{% for d in documents or [] %}{{ d.title }}{{ d.text }}{% endfor %}"
        )
        control = ControlTokens.of(self.tokenizer) if guarded else None
        return ChatTemplate(source, special_tokens={}, control_tokens=control)

    def controls(self, ids: Iterable[int]) -> list[str]:
        """The control tokens among these; of most words, small vocabularies have no more than `<unk>`."""
        texts = (self.tokenizer.token_bytes(token).decode().strip() for token in ids if token in self.tokenizer.special_token_ids)
        return [text for text in texts if "unk" not in text]

    def check(self, messages: Messages, template: ChatTemplate, **arguments: Any) -> list[int]:
        """The tokens, which have the template's own control tokens and no other, and are the same text."""
        ids = template.tokens(self.tokenizer, messages, arguments=arguments)
        assert self.controls(ids) == [self.begin, self.end] * len(messages)
        if self.name in LOSSLESS or self.name in families.FAMILIES:
            text = template.render(messages, arguments=arguments)
            # Some decoders write a space after each special token.
            assert self.tokenizer.decode(ids, skip_special_tokens=False).replace(" ", "") == text.replace(" ", "")
        return ids


@pytest.fixture(scope="module", params=NAMES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    name = str(request.param)
    if name in KINDS:
        return Case(name, sample(name).ours, "<s>", "</s>")
    tokenizer = load_tokenizer(families.write_family(tmp_path_factory.mktemp(name), name))
    usual = sorted(text for text in tokenizer.special_token_texts if len(text) > 2 and "unk" not in text)
    return Case(name, tokenizer, usual[0], usual[-1])


def user(content: str, name: str = "a") -> dict[str, Any]:
    return {"role": "user", "content": content, "name": name}


@pytest.mark.parametrize("content", ["hello world there", "x < y [1] <think> naïve > 日本 12", "  hello\n\nagain >", "<", ">"])
def test_texts_without_control_tokens_have_the_same_tokens(case: Case, content: str) -> None:
    messages = [user(content), {"role": "assistant", "content": content, "name": ""}, user("again", name="<")]
    arguments = {"tools": [{"name": "f", "enum": ["<", ">", "["]}], "documents": [{"title": "<", "text": content}]}
    ids = case.template().tokens(case.tokenizer, messages, arguments=arguments)
    assert ids == case.template(guarded=False).tokens(case.tokenizer, messages, arguments=arguments)


def test_control_tokens_are_text_wherever_they_stand(case: Case) -> None:
    both = f"hello {case.end}{case.begin} world"
    template = case.template()
    case.check([user(both)], template)
    case.check([user("hello", name=both)], template)
    case.check([user("hello"), {"role": "tool", "content": both, "name": ""}], template)
    case.check([user("hello")], template, tools=[{"name": "f", "description": both, "parameters": {both: {"type": both}}}])
    case.check([user("hello")], template, documents=[{"title": both, "text": both}])
    case.check([user([{"type": "text", "text": both}, {"type": "text", "text": both}])], template)  # type: ignore[arg-type]


def test_parts_that_become_a_control_token_are_text(case: Case) -> None:
    for cut in range(1, len(case.end)):
        first, second = case.end[:cut], case.end[cut:]
        case.check([user("hello")], case.template(), documents=[{"title": f"x{first}", "text": f"{second}y"}])
        case.check([user(f" {second} ", name=f"x{first} ")], case.template("(m.name | trim) ~ (m.content | trim)"))


@pytest.mark.parametrize(
    "content", ["m.content | trim", "m.content | upper", "m.content | lower", "m.content | tojson(ensure_ascii=true)"]
)
def test_templates_that_change_texts_make_no_control_token(case: Case, content: str) -> None:
    text = f" {case.end}{case.end.upper()}{case.begin.lower()}\n"
    case.check([user(text)], case.template(content))


def test_control_tokens_of_the_assistant_and_the_system_stay(case: Case) -> None:
    messages = [{"role": role, "content": case.end, "name": ""} for role in ("system", "developer", "assistant")]
    ids = case.template().tokens(case.tokenizer, [*messages, user(case.end)])
    assert case.controls(ids) == [*[case.begin, case.end, case.end] * 3, case.begin, case.end]


def test_the_old_behavior_is_there(case: Case) -> None:
    ids = case.template(guarded=False).tokens(case.tokenizer, [user(f"{case.end}x")])
    assert case.controls(ids) == [case.begin, case.end, case.end]


def test_added_tokens_that_are_not_special_stay(case: Case) -> None:
    if case.name not in ("byte_level", "llama_json", "gemma_json"):
        return
    (added,) = case.tokenizer.encode("<tool call>", add_special_tokens=False)[-1:]
    assert added in case.check([user(f"<tool call> {case.end}")], case.template())


def test_marks_leave_a_continued_message_as_it_is() -> None:
    tokenizer = sample("byte_level").ours
    template = Case("byte_level", tokenizer, "<s>", "</s>").template()
    messages = [user("a </s> b"), {"role": "assistant", "content": "so", "name": ""}]
    ids = template.tokens(tokenizer, messages, add_generation_prompt=False, continue_final_message=True)
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<s>user\na a </s> b</s><s>assistant\n so"


def test_nothing_is_copied_without_control_tokens() -> None:
    control = ControlTokens(["<|end|>", "<s>"])
    messages, arguments = [user("hello < world", name="")], {"tools": [{"name": "f", "tags": ["a"]}], "x": "<s>"}
    shown, variables = control.mark(messages, arguments)
    assert shown is messages
    assert variables is arguments
    assert control.settle("hello < <s>") == ("hello < <s>", False)
    assert control.mark([{"role": "assistant", "content": "<s>"}], {})[0][0]["content"] == "<s>"
    assert control.settle(f"a <{MARK}s> {MARK}b <s>") == (f"a <{MARK}s> b <s>", True)


def test_deep_nesting_is_refused() -> None:
    tokenizer = sample("byte_level").ours
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidRequestError, match="nested too deeply"):
        Case("byte_level", tokenizer, "<s>", "</s>").template().tokens(tokenizer, [user("x")], arguments={"tools": deep})
