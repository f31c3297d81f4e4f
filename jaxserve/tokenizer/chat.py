"""Chat templates: Jinja, sandboxed, as Hugging Face checkpoints bring them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser

from jaxserve.errors import CheckpointError, ContextLengthError, InvalidRequestError
from jaxserve.tokenizer.base import Tokenizer
from jaxserve.tokenizer.config_files import read_object, read_tokenizer_config
from jaxserve.tokenizer.control_tokens import ControlTokens
from jaxserve.tokenizer.template_contents import reads_parts
from jaxserve.tokenizer.template_limits import LimitedEnvironment, TemplateTimeError

RENDER_SECONDS = 2.0  # of processor time; 100,000 short messages take a third of it

# Marks where the final message ends in the rendered text. The space after it tells whether the template trims.
_END_MARK = "\ue0cdend-of-final-message\ue0ce"
_RESERVED = frozenset({"messages", "add_generation_prompt", "continue_final_message"})
_MAX_ERROR_LENGTH = 400


class ChatTemplate:
    """A checkpoint's way to write a conversation as one prompt, compiled once. Thread-safe."""

    def __init__(
        self,
        source: str,
        *,
        special_tokens: Mapping[str, str],
        tool_use: str | None = None,
        now: Callable[[], datetime] = datetime.now,
        seconds: float = RENDER_SECONDS,
        control_tokens: ControlTokens | None = None,
    ) -> None:
        """Compile a template.

        Args:
            source: the Jinja template.
            special_tokens: role -> text, such as ``bos_token``; variables of the template.
            tool_use: the template of conversations with tools, where that is another one.
            now: what the template's ``strftime_now`` reads.
            seconds: of processor time that a conversation may take.
            control_tokens: those that stay text where users, tools and documents spell them; None: they are recognised.

        Raises CheckpointError if the template is not valid Jinja.
        """
        environment = LimitedEnvironment(
            seconds=seconds, trim_blocks=True, lstrip_blocks=True, extensions=[LoopControlExtension, _GenerationBlock]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: now().strftime(form)
        try:
            self._template = environment.from_string(source)
            self._tool_use = self._template if tool_use is None else environment.from_string(tool_use)
            sources = {self._template: source} if tool_use is None else {self._template: source, self._tool_use: tool_use}
            self._reads_parts = {template: reads_parts(environment, text) for template, text in sources.items()}
        except TemplateError as error:
            raise CheckpointError(f"the chat template is not valid Jinja: {_one_line(error)}") from error
        self.source = source
        self.sources = (source,) if tool_use is None else (source, tool_use)
        self._environment = environment
        self._control_tokens = control_tokens
        self._special_tokens = dict(special_tokens)

    @classmethod
    def load(
        cls, path: str | Path, override: str | Path | None = None, *, control_tokens: ControlTokens | None = None
    ) -> ChatTemplate | None:
        """The chat template of a checkpoint directory (or of the directory of a tokenizer file); None if it has none.

        Taken from, in this order: the file `override`; ``chat_template.jinja`` and the named ones in
        ``additional_chat_templates/``; ``chat_template`` in tokenizer_config.json, a text or a list of named ones;
        ``chat_template.json``, as processors of models for images have it. Of several, ``default`` is taken, and
        ``tool_use`` for conversations with tools; other names are not used. Raises
        CheckpointError if a file is missing, damaged or not valid Jinja.
        """
        path = Path(path)
        directory = path if path.is_dir() else path.parent
        config = read_tokenizer_config(directory)
        if override is not None:
            templates = {"default": _read(Path(override))}
        else:
            configured = _configured_templates(config.chat_template, directory / "tokenizer_config.json")
            templates = _template_files(directory) or configured or _of_processor(directory / "chat_template.json")
        if not templates:
            return None
        if "default" not in templates:
            raise CheckpointError(f"{directory}: of the chat templates {sorted(templates)}, none is called default")
        return cls(
            templates["default"],
            special_tokens=config.names,
            tool_use=templates.get("tool_use"),
            control_tokens=control_tokens,
        )

    def tokens(
        self,
        tokenizer: Tokenizer,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        arguments: Mapping[str, Any] | None = None,
        max_characters: int | None = None,
    ) -> list[int]:
        """The tokens of a conversation; see `render`.

        Control tokens that the template writes, and those in messages of the assistant, the system and the developer, are
        recognised. In all other messages, in tools and in documents they are text, unless the template was made without
        `control_tokens`. Raises ContextLengthError, too, for a text of more than `max_characters`.
        """
        arguments = arguments or {}
        control = self._control_tokens
        try:
            shown, variables = (messages, arguments) if control is None else control.mark(messages, arguments)
        except RecursionError:
            raise _refused("messages, tools or documents are nested too deeply") from None
        text = self.render(
            shown,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            arguments=variables,
        )
        has_marks = False
        if control is not None and (shown is not messages or variables is not arguments):
            text, has_marks = control.settle(text)
        if max_characters is not None and len(text) > max_characters:
            raise ContextLengthError(
                f"messages make a prompt of {len(text)} characters, and more than {max_characters} bytes cannot fit the context",
                param="messages",
            )
        # The template wrote the special tokens itself.
        return tokenizer.encode_marked(text) if has_marks else tokenizer.encode(text, add_special_tokens=False)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt of a conversation; it already has BOS and the like, so encode it without special tokens.

        Args:
            messages: each with a ``role`` and a ``content``: a string, or a list of ``{"type": "text", "text": ...}``
                parts, which are joined by newlines unless the template reads such lists; it may be None beside ``tool_calls``.
                Arguments of calls are objects, or their JSON text.
            add_generation_prompt: end with the start of the assistant's turn.
            continue_final_message: end inside the final message, for the model to go on with it.
            arguments: further variables of the template (``chat_template_kwargs``), ``tools`` among them.

        Raises InvalidRequestError if a message has another shape or the template refuses the conversation.
        """
        arguments = arguments or {}
        if taken := sorted(_RESERVED & arguments.keys()):
            raise InvalidRequestError(f"chat_template_kwargs must not contain {taken[0]}", param="chat_template_kwargs")
        if add_generation_prompt and continue_final_message:
            raise InvalidRequestError(
                "add_generation_prompt and continue_final_message exclude each other", param="continue_final_message"
            )
        # Templates ask "is not none" of tools and documents, which an undefined variable would pass.
        variables = {"tools": None, "documents": None, **self._special_tokens, **arguments}
        template = self._template if variables["tools"] is None else self._tool_use
        in_parts = self._reads_parts[template]
        conversation = [_plain_message(message, index, in_parts=in_parts) for index, message in enumerate(messages)]
        if not conversation:
            raise _refused("messages must not be empty")
        if continue_final_message:
            conversation[-1]["content"] = _marked_at_end(conversation[-1]["content"])
        variables |= {"messages": conversation, "add_generation_prompt": add_generation_prompt}
        try:
            with self._environment.limited():
                text = template.render(variables)
        except TemplateTimeError:
            raise _refused(
                f"the chat template takes more than the {self._environment.seconds:g} s of processor time that it may for these "
                "messages and arguments"
            ) from None
        except Exception as error:  # a template is a program: it can fail in any way
            raise _refused(f"the chat template refuses these messages: {_one_line(error)}") from error
        return _cut_at_mark(text) if continue_final_message else text


def _template_files(directory: Path) -> dict[str, str]:
    files = {file.stem: file for file in sorted((directory / "additional_chat_templates").glob("*.jinja"))}
    if (directory / "chat_template.jinja").is_file():
        files["default"] = directory / "chat_template.jinja"
    return {name: _read(file) for name, file in files.items()}


def _of_processor(file: Path) -> dict[str, str]:
    return _configured_templates(read_object(file).get("chat_template"), file)


def _configured_templates(value: object, file: Path) -> dict[str, str]:
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    try:
        return {str(entry["name"]): str(entry["template"]) for entry in value}  # type: ignore[attr-defined]
    except (TypeError, KeyError) as error:
        raise CheckpointError(f"{file}: chat_template is neither a text nor a list of named ones") from error


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise CheckpointError(f"chat template {file} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"chat template {file} cannot be read: {error}") from error


def _plain_message(message: Mapping[str, Any], index: int, *, in_parts: bool) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise _refused(f"messages[{index}] must be an object with a role")
    content = message.get("content")
    if content is None and message.get("tool_calls"):
        content = ""
    if isinstance(content, list):
        texts = [_part_text(part, index) for part in content]
        content = content if in_parts else "\n".join(texts)
    elif not isinstance(content, str):
        raise _refused(f"messages[{index}].content must be a string or a list of text parts")
    plain = {**message, "content": content}
    if message.get("tool_calls"):
        plain["tool_calls"] = _with_objects(message["tool_calls"], index)
    return plain


def _with_objects(calls: Any, index: int) -> Any:
    """Calls whose arguments are objects, as templates have them, where clients send back their JSON text."""
    if not isinstance(calls, list):
        return calls
    return [_with_object(call, f"messages[{index}].tool_calls[{place}]") for place, call in enumerate(calls)]


def _with_object(call: Any, path: str) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    text = function.get("arguments") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(text, str):
        return call
    try:
        arguments = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError) as error:
        raise _refused(f"{path}.function.arguments must be the JSON text of an object: {error}") from error
    if not isinstance(arguments, dict):
        raise _refused(f"{path}.function.arguments must be the JSON text of an object")
    return {**call, "function": {**function, "arguments": arguments}}


def _marked_at_end(content: str | list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return f"{content}{_END_MARK} "
    *others, last = content or [{"type": "text", "text": ""}]
    return [*others, {**last, "text": f"{last['text']}{_END_MARK} "}]


def _part_text(part: Any, index: int) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    if kind != "text":
        raise _refused(f"messages[{index}].content has a part of type {kind!r}; only 'text' is supported")
    if not isinstance(part.get("text"), str):
        raise _refused(f"messages[{index}].content has a text part without a text")
    return str(part["text"])


def _cut_at_mark(text: str) -> str:
    end = text.rfind(_END_MARK)
    if end < 0:
        raise _refused("the chat template leaves out the final message, so it cannot be continued")
    if text.startswith(f"{_END_MARK} ", end):
        return text[:end]
    # The template trims contents: without the mark it would have trimmed the message itself.
    return text[:end].rstrip()


def _refused(message: str) -> InvalidRequestError:
    return InvalidRequestError(message, param="messages")


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _MAX_ERROR_LENGTH else f"{text[:_MAX_ERROR_LENGTH]}..."


def _raise_exception(message: object) -> NoReturn:
    raise TemplateError(str(message))


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes for HTML.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class _GenerationBlock(Extension):
    """``{% generation %}`` marks the assistant's words for training; here it only groups."""

    tags = {"generation"}  # noqa: RUF012 - the attribute's type is Jinja's

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)
