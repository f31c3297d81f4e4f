"""Fields of bodies that say what form the output must have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from jaxserve.sampling.structured import MAX_CHOICES
from server.http.unions import described
from server.structured import KINDS, MEMBERS, WHITESPACE, Form, Way, form_of, one_way, ways

JsonSchema = Annotated[dict[str, Any] | str, described("a JSON schema: an object, or its JSON text")]
Tag = Annotated[dict[str, Any] | str, described("a structural tag: an object, or its JSON text")]
_ATTRIBUTES = {"json": "json_"}  # a name that pydantic has taken
Choices = Annotated[list[str], Field(json_schema_extra={"maxItems": MAX_CHOICES})]


class StructuredOutputs(BaseModel):
    """What form the output must have: exactly one of the first six."""

    model_config = ConfigDict(strict=True, extra="forbid")

    json_: JsonSchema | None = Field(None, alias="json", description="JSON that satisfies this schema")
    regex: str | None = Field(None, description="text that matches it as a whole (syntax of Rust's regex)")
    choice: Choices | None = Field(None, description="one of these texts")
    grammar: str | None = Field(None, description="text of this grammar, in Lark or GBNF")
    json_object: bool | None = Field(None, description="any JSON object")
    structural_tag: Tag | None = Field(None, description="text with parts of a given form, each begun by its tag")
    disable_any_whitespace: bool | None = Field(None, description="JSON without white space between its parts")
    disable_additional_properties: bool | None = Field(
        None, description="no properties beside those that the schema names, where it does not say"
    )
    whitespace_pattern: str | None = Field(None, description="regex of the white space between parts of JSON")


class StructuredFields(BaseModel):
    """What every endpoint that generates takes."""

    structured_outputs: StructuredOutputs | None = Field(None, description="what form the output must have")
    guided_json: JsonSchema | None = Field(None, description="structured_outputs.json")
    guided_regex: str | None = Field(None, description="structured_outputs.regex")
    guided_choice: Choices | None = Field(None, description="structured_outputs.choice")
    guided_grammar: str | None = Field(None, description="structured_outputs.grammar")
    guided_json_object: bool | None = Field(None, description="structured_outputs.json_object")
    guided_whitespace_pattern: str | None = Field(None, description="structured_outputs.whitespace_pattern")
    grammar: str | None = Field(None, description="structured_outputs.grammar")
    json_schema: JsonSchema | None = Field(None, description="structured_outputs.json")
    regex: str | None = Field(None, description="structured_outputs.regex")
    ebnf: str | None = Field(None, description="structured_outputs.grammar")
    choice: Choices | None = Field(None, description="structured_outputs.choice")
    json_object: bool | None = Field(None, description="structured_outputs.json_object")
    structural_tag: Tag | None = Field(None, description="structured_outputs.structural_tag")

    def own_way(self) -> Iterator[Way]:
        """How this endpoint's API says it, beside the fields above."""
        return iter(())

    def form(self, prefix: str = "") -> Form:
        """What form the output must have; `prefix` makes the fields' names what the client calls them.

        Raises InvalidRequestError in the client's words.
        """
        whole = self.structured_outputs
        given = {name: getattr(self, name) for name in KINDS}
        if whole is not None:
            given["structured_outputs"] = {name: getattr(whole, _ATTRIBUTES.get(name, name)) for name in MEMBERS}
        return form_of([*self.own_way(), *ways(given, prefix)], getattr(self, WHITESPACE), prefix)


class TextFormat(BaseModel):
    """Any text."""

    model_config = ConfigDict(strict=True)

    type: Literal["text"]


class JsonObjectFormat(BaseModel):
    """Any JSON object, or one that satisfies a schema."""

    model_config = ConfigDict(strict=True)

    type: Literal["json_object"]
    schema_: dict[str, Any] | None = Field(None, alias="schema", description="as llama.cpp takes it; any by default")

    def way(self, path: str) -> Way:
        if self.schema_ is None:
            return one_way("json_object", True, path)
        return one_way("json", self.schema_, f"{path}.schema", path)


class NamedSchema(BaseModel):
    """A JSON schema and its name; it is always held to, whatever `strict` says."""

    model_config = ConfigDict(strict=True)

    name: str | None = Field(None, description="without effect")
    description: str | None = Field(None, description="without effect")
    schema_: dict[str, Any] = Field(alias="schema", description="the schema")
    strict: bool | None = Field(None, description="without effect: schemas are always held to")


class JsonSchemaFormat(BaseModel):
    """JSON that satisfies a schema."""

    model_config = ConfigDict(strict=True)

    type: Literal["json_schema"]
    json_schema: NamedSchema = Field(description="the schema")

    def way(self, path: str) -> Way:
        return one_way("json", self.json_schema.schema_, f"{path}.json_schema.schema", path)


class AnthropicFormat(BaseModel):
    """JSON that satisfies a schema."""

    model_config = ConfigDict(strict=True)

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema", description="the schema")

    def way(self, path: str) -> Way:
        return one_way("json", self.schema_, f"{path}.schema", path)


class FlatJsonSchemaFormat(NamedSchema):
    """JSON that satisfies a schema."""

    type: Literal["json_schema"]

    def way(self, path: str) -> Way:
        return one_way("json", self.schema_, f"{path}.schema", path)


class StructuralTagFormat(BaseModel):
    """Text with parts of a given form: `structures` and `triggers`, or `format`."""

    model_config = ConfigDict(strict=True)

    type: Literal["structural_tag"]
    structures: list[dict[str, Any]] | None = Field(None, description="{begin, schema, end} each")
    triggers: list[str] | None = Field(None, description="texts that begin a structure")
    format: dict[str, Any] | None = Field(None, description="the newer form")

    def way(self, path: str) -> Way:
        return one_way("structural_tag", {name: value for name, value in self if value is not None}, path)


ResponseFormat = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat | StructuralTagFormat, Field(discriminator="type")]
FlatFormat = Annotated[TextFormat | JsonObjectFormat | FlatJsonSchemaFormat, Field(discriminator="type")]


def way_of(format: ResponseFormat | FlatFormat | AnthropicFormat | None, path: str) -> Iterator[Way]:
    if format is not None and not isinstance(format, TextFormat):
        yield format.way(path)
