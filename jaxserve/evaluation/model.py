"""JaxserveLM: an engine in this process as lm-eval asks a model.

Texts become tokens exactly as lm-eval's own `hf` model makes them, so that both score the same tokens.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import has_bos_prefix, postprocess_generated_text
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from jaxserve.errors import CheckpointError, ConfigError, ContextLengthError, InvalidRequestError
from jaxserve.evaluation.generation import GenerationArguments, generation
from jaxserve.executor.programs import CompileProgress, silent
from jaxserve.llm import LLM
from jaxserve.offline_likelihood import Pair
from jaxserve.outputs import LikelihoodOutput, RequestOutput
from jaxserve.sampling.params import SamplingParams
from jaxserve.types import Prompt

logger = logging.getLogger(__name__)

MAX_GEN_TOKS = 256  # output tokens of a task that names no number: as lm-eval's other models have it
NO_ARGUMENTS: Mapping[str, Any] = {}


@dataclass(slots=True)
class TokensUsed:
    """Tokens of all requests so far: of prompts, those of them found in the prefix cache, and of outputs."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0

    def add(self, output: RequestOutput) -> None:
        self.prompt_tokens += len(output.prompt_token_ids)
        self.cached_tokens += output.num_cached_tokens
        self.output_tokens += sum(len(sequence.token_ids) for sequence in output.outputs)


class JaxserveLM(TemplateLM):  # type: ignore[misc]  # lm_eval is not typed
    """lm-eval's model class over an LLM.

    Attributes:
        usage: tokens so far.
        max_length: tokens that the model sees at once; longer contexts lose their beginning.

    Args:
        llm: the model.
        max_length: less than the engine's `max_model_len`, if wanted.
        max_gen_toks: output tokens of tasks that name no number.
        add_bos_token: whether texts get the tokenizer's special tokens; None for what the tokenizer does by default.
        prefix_token_id: what an empty context is replaced with; None for the tokenizer's BOS, or its EOS.
        chat_template_args: further variables of the chat template.
        on_progress: told of finished requests: (what, done, of how many).

    Raises ConfigError for a `max_length` that the engine does not have, and CheckpointError without a tokenizer.
    """

    def __init__(
        self,
        llm: LLM,
        *,
        max_length: int | None = None,
        max_gen_toks: int = MAX_GEN_TOKS,
        add_bos_token: bool | None = None,
        prefix_token_id: int | None = None,
        chat_template_args: Mapping[str, Any] = NO_ARGUMENTS,
        on_progress: CompileProgress = silent,
    ) -> None:
        super().__init__()
        longest = llm.report.model.max_model_len
        if max_length is not None and not 1 <= max_length <= longest:
            raise ConfigError(f"max_length must be between 1 and {longest}, got {max_length}", param="max_length")
        self.usage = TokensUsed()
        self.max_length = max_length or longest
        self._llm = llm
        self._tokens = llm.tokenizer
        self._max_gen_toks = max_gen_toks
        self._add_bos_token = add_bos_token
        self._prefix_token_id = prefix_token_id
        self._chat_template_args = chat_template_args
        self._on_progress = on_progress

    @property
    def eot_token_id(self) -> int:
        """The tokenizer's end-of-sequence token. Raises CheckpointError if it names none."""
        if self._tokens.eos_token_id is None:
            raise CheckpointError("the tokenizer names no end-of-sequence token")
        return self._tokens.eos_token_id

    @property
    def prefix_token_id(self) -> int:
        """The token that stands for an empty context."""
        if self._prefix_token_id is not None:
            return self._prefix_token_id
        bos = self._tokens.bos_token_id
        return self.eot_token_id if bos is None else bos

    @property
    def tokenizer_name(self) -> str:
        """Where the tokenizer lies, as a name for lm-eval's caches of requests."""
        return self._llm.report.model.tokenizer.replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The source of the model's chat template, None if it is not to be used. There is one at most: names mean the same."""
        template = self._llm.chat_template
        return None if template is None or chat_template is False else template.source

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The prompt of a conversation; where the template refuses it, without its system messages, as `hf` does."""
        template = self._llm.chat_template
        if template is None:
            raise CheckpointError("the model has no chat template")
        ends = {"add_generation_prompt": add_generation_prompt, "continue_final_message": not add_generation_prompt}
        try:
            return template.render(chat_history, arguments=self._chat_template_args, **ends)
        except InvalidRequestError as error:
            others = [message for message in chat_history if message["role"] != "system"]
            if len(others) == len(chat_history):
                raise
            logger.warning("the chat template is applied without the system message: %s", error)
            return template.render(others, arguments=self._chat_template_args, **ends)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Token ids of a text. If not told otherwise, special tokens are added unless the text begins with the prefix token."""
        special = True if self._add_bos_token is None else self._add_bos_token
        if add_special_tokens is not None:
            special = add_special_tokens
        elif has_bos_prefix(string, self._text_of(self.prefix_token_id)):
            special = False
        return self._tokens.encode(string, add_special_tokens=special)

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """(context, continuation) -> log-likelihood, and whether greedy decoding says the continuation."""
        answers: list[tuple[float, bool]] = super().loglikelihood(requests, disable_tqdm=True)  # its bar is of the tokenizing
        return answers

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """The log-likelihood of whole texts, each in windows of `max_length` that predict every token once."""
        owners: list[int] = []
        windows: list[tuple[None, list[int], list[int]]] = []
        for number, request in enumerate(requests):
            (text,) = request.args
            rolling = get_rolling_token_windows(self.tok_encode(text), self.prefix_token_id, self.max_length, context_len=1)
            for window in map(make_disjoint_window, rolling):
                windows.append((None, *window))
                owners.append(number)
        totals = [0.0] * len(requests)
        for owner, (score, _) in zip(owners, self._loglikelihood_tokens(windows), strict=True):
            totals[owner] += score
        for request, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """The text that follows each context, up to the first of the task's stop strings. Longest contexts first."""
        wanted = [self._generation(*request.args) for request in requests]
        order = sorted(range(len(requests)), key=lambda number: -len(wanted[number][0]))
        answers = [""] * len(requests)

        def take(place: int, output: RequestOutput) -> None:
            number = order[place]
            text = self._tokens.decode(output.outputs[0].token_ids)
            answers[number] = postprocess_generated_text(text, list(wanted[number][1].until), None)
            self.cache_hook.add_partial("generate_until", requests[number].args, answers[number])

        asked = [(wanted[number][0], wanted[number][1].params) for number in order]
        self._run("generating", asked, take)
        return answers

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[tuple[str, str] | None, list[int], list[int]]], **kwargs: Any
    ) -> list[tuple[float, bool]]:
        """(texts or None, context, continuation) -> log-likelihood, and whether greedy decoding says the continuation."""
        pairs = [self._fitting(context, continuation) for _, context, continuation in requests]
        answers = [(0.0, True)] * len(requests)
        ended = 0

        def on_output(output: LikelihoodOutput) -> None:
            nonlocal ended
            if output.error is not None:
                raise output.error
            self.usage.prompt_tokens += output.num_prompt_tokens
            self.usage.cached_tokens += output.num_cached_tokens
            member = int(output.request_id)
            answers[member] = output.logprob, output.is_greedy
            texts = requests[member][0]
            if texts is not None:  # windows of a longer text have no name of their own
                self.cache_hook.add_partial("loglikelihood", texts, answers[member])
            ended += 1
            self._on_progress("scoring", ended, len(requests))

        self._llm.loglikelihood(pairs, use_tqdm=False, on_output=on_output)
        return answers

    def _run(
        self,
        what: str,
        requests: Sequence[tuple[Sequence[int], SamplingParams]],
        take: Callable[[int, RequestOutput], None],
    ) -> None:
        """Generate for all requests; `take` gets the place and output of each as it ends. Raises what one failed with."""
        ended = 0

        def on_output(output: RequestOutput) -> None:
            nonlocal ended
            if output.error is not None:
                raise output.error
            self.usage.add(output)
            take(int(output.request_id), output)
            ended += 1
            self._on_progress(what, ended, len(requests))

        prompts: list[Prompt] = [{"prompt_token_ids": list(tokens)} for tokens, _ in requests]
        self._llm.generate(prompts, [params for _, params in requests], use_tqdm=False, on_output=on_output)

    def _fitting(self, context: list[int], continuation: list[int]) -> Pair:
        """Context and continuation as far as the model sees them."""
        if not continuation:  # its characters may have become part of the context's last token
            raise InvalidRequestError(f"a continuation of {len(context)} tokens of context has no token of its own")
        if len(continuation) > self.max_length:
            raise ContextLengthError(f"a continuation has {len(continuation)} tokens, but max_length is {self.max_length}")
        room = self.max_length + 1 - len(continuation)  # the last one is predicted, not seen
        if len(context) > room:
            logger.warning("a context of %d tokens loses its beginning: max_length is %d", len(context), self.max_length)
        return context[-room:], continuation

    def _generation(self, context: str, arguments: Mapping[str, Any]) -> tuple[list[int], GenerationArguments]:
        wanted = generation(arguments, eos=self._text_of(self.eot_token_id), max_gen_toks=self._max_gen_toks)
        room = self.max_length - wanted.max_tokens
        if room < 1:
            raise ContextLengthError(f"max_gen_toks is {wanted.max_tokens}, but max_length is {self.max_length}")
        tokens = self.tok_encode(context)
        if len(tokens) > room:
            logger.warning("a context of %d tokens loses its beginning: %d leave room for the output", len(tokens), room)
        return tokens[-room:], wanted

    def _text_of(self, token: int) -> str:
        return self._tokens.decode([token], skip_special_tokens=False)
