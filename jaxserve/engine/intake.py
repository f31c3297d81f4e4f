"""From a prompt and parameters to the sequences the engine runs: tokenize, validate, resolve limits and seeds."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple, cast

from jaxserve.cache.prefix_hash import CacheNamespace
from jaxserve.config.policies import Policies
from jaxserve.engine.bounds import LONGEST, RequestBounds
from jaxserve.engine.budgets import Budgets, Grant, cache_salt
from jaxserve.errors import ContextLengthError, InvalidRequestError
from jaxserve.pooling.params import PoolingParams
from jaxserve.pooling.pooler import Pooler, require_pooler
from jaxserve.sampling.params import NOTHING_CHOSEN, RAW_LOGPROBS, SamplingParams
from jaxserve.scheduler.request import EngineRequest, Sibling
from jaxserve.step.tasks import GENERATE, HEAD, POOLED, SCORE, TOKEN_VECTORS, WHOLE, pooling_task_name
from jaxserve.tokenizer.base import Tokenizer
from jaxserve.types import OwnTokenIds, Prompt, RequestOptions, ServiceClass

NO_OPTIONS = RequestOptions()
KNOWN_ROOTS = 4096  # salts whose hash is kept


@dataclass(frozen=True, slots=True)
class IntakeLimits:
    """What a prompt must fit.

    Attributes:
        max_model_len: prompt plus output, tokens.
        vocab_size: token ids that the model knows.
        eos_token_ids: ids that end a sequence.
        max_sequences: sequences of one request, for all of them must fit the waiting queue.
        seed: where the seeds of requests without one come from.
        strict: whether prompt + max_tokens beyond the context is an error (servers) or ends the output early (offline).
        default_max_tokens: output tokens of a request that does not say; None for all that the context leaves.
        max_logprob_values, max_pooling_bytes: see RequestBounds.
        logprobs_mode: of requests that do not say.
        generates: whether text is generated.
        pooler: what is made of hidden states; None for nothing.
    """

    max_model_len: int
    vocab_size: int
    eos_token_ids: frozenset[int]
    max_sequences: int
    seed: int
    strict: bool
    default_max_tokens: int | None = None
    max_logprob_values: int = 524_288
    max_pooling_bytes: int = 100_000_000
    logprobs_mode: str = RAW_LOGPROBS
    generates: bool = True
    pooler: Pooler | None = None


@dataclass(frozen=True, slots=True)
class IntakeRules:
    """Everything an intake goes by, as plain data: what another process needs for an intake of its own.

    Attributes:
        namespace: what cached keys and values depend on besides tokens.
        policies, default_class, num_pages, page_size, windows, max_chunk: see Budgets.
    """

    limits: IntakeLimits
    namespace: CacheNamespace
    policies: Policies
    default_class: ServiceClass
    num_pages: int
    page_size: int
    windows: tuple[int | None, ...] = (None,)
    max_chunk: int = 1


class PooledRequest(NamedTuple):
    """A request that is pooled, and what it is pooled by."""

    request: EngineRequest
    pooler: Pooler


class Intake:
    """Prepares requests; `prepare` may be called from several threads.

    Args:
        tokenizer: None if prompts come as token ids only.
        namespace: what cached keys and values depend on besides tokens; tenants and salts make their own of it.
        origin: tells its requests from those of an engine's other intakes, in their ids and in the seeds drawn for them.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        limits: IntakeLimits,
        namespace: CacheNamespace,
        budgets: Budgets,
        origin: str = "",
    ) -> None:
        self._tokenizer = tokenizer
        self._limits = limits
        self._namespace = namespace
        self._budgets = budgets
        self._origin = origin
        self._bounds = RequestBounds(
            context=limits.max_model_len,
            sequences=limits.max_sequences,
            logprob_values=limits.max_logprob_values,
            pooling_bytes=limits.max_pooling_bytes,
            token_bytes=None if tokenizer is None else tokenizer.max_token_bytes,
            default_max_tokens=limits.default_max_tokens,
        )
        self._root_of = _roots(namespace)
        # A tokenizer may have more special tokens than the model has embeddings.
        self._knows_own = tokenizer is not None and tokenizer.vocab_size <= limits.vocab_size
        self._counter = itertools.count()

    @classmethod
    def by_rules(cls, tokenizer: Tokenizer, rules: IntakeRules, origin: str) -> Intake:
        budgets = Budgets(
            rules.policies,
            rules.default_class,
            num_pages=rules.num_pages,
            page_size=rules.page_size,
            windows=rules.windows,
            max_chunk=rules.max_chunk,
        )
        return cls(tokenizer, rules.limits, rules.namespace, budgets, origin)

    @property
    def rules(self) -> IntakeRules:
        budgets = self._budgets
        return IntakeRules(
            self._limits,
            self._namespace,
            budgets.policies,
            budgets.default_class,
            budgets.num_pages,
            budgets.page_size,
            budgets.windows,
            budgets.max_chunk,
        )

    @property
    def bounds(self) -> RequestBounds:
        return self._bounds

    def weights_are(self, version: int | str | None) -> None:
        """What is cached from now on is of other weights; None for those that the model came with."""
        self._namespace = replace(self._namespace, weights="" if version is None else f"{type(version).__name__} {version}")
        self._root_of = _roots(self._namespace)

    def is_plain(self, root: bytes) -> bool:
        """Whether prefixes without tenant and salt begin with it, here or for an intake that was not told of newer weights."""
        return root in (self._namespace.root(), replace(self._namespace, weights="").root())

    def cache_root(self, options: RequestOptions) -> bytes:
        """The hash that prefixes of this tenant with this salt begin with; no other tenant and salt has the same."""
        return self._root_of(cache_salt(options))

    def prepare(
        self, prompt: Prompt, params: SamplingParams, request_id: str, arrival: float, options: RequestOptions = NO_OPTIONS
    ) -> list[EngineRequest]:
        """The `n` sequences of a request. Their ids are unique even if `request_id` is used again.

        `arrival` is the clock time of the request, seconds.

        Raises InvalidRequestError or ContextLengthError naming the field and the limit.
        """
        if not self._limits.generates:
            raise InvalidRequestError(
                "this model is served to pool, not to generate text: ask for embeddings, scores or classes", param="model"
            )
        grant = self._budgets.grant(options, arrival)
        self._bounds.check_prompt(prompt)
        tokens = self._tokens(prompt)
        self._check_ids("logit_bias", params.logit_bias)
        self._check_ids("stop_token_ids", params.stop_token_ids)
        self._check_ids("allowed_token_ids", params.allowed_token_ids or ())
        self._check_satisfiable(params)
        if params.stop and self._tokenizer is None:
            raise InvalidRequestError("stop strings need a tokenizer, and none is loaded", param="stop")
        if params.logprobs_mode is None and self._limits.logprobs_mode != RAW_LOGPROBS:
            params = replace(params, logprobs_mode=self._limits.logprobs_mode)
        if grant.max_draft_tokens is not None and not 0 <= params.max_draft_tokens <= grant.max_draft_tokens:
            params = replace(params, max_draft_tokens=grant.max_draft_tokens)
        max_tokens = self._max_tokens(len(tokens), params, grant)
        self._check_scores(params, len(tokens))
        output = self._output(prompt, params, max_tokens)
        task = SCORE if params.scores_only else GENERATE
        number = f"{self._origin}{next(self._counter)}"
        seed = params.seed if params.seed is not None else _mix(self._limits.seed, number)
        first = EngineRequest(
            id=f"{request_id}/{number}/0",
            prompt=tuple(tokens),
            params=params,
            max_tokens=max_tokens,
            seed=seed,
            eos_token_ids=self._limits.eos_token_ids,
            task=task.name,
            output=output,
            **self._terms(grant, options, arrival),
        )
        return first.with_siblings([Sibling(f"{request_id}/{number}/{place}", _mix(seed, place)) for place in range(1, params.n)])

    def prepare_pooled(
        self, prompt: Prompt, params: PoolingParams, request_id: str, arrival: float, options: RequestOptions = NO_OPTIONS
    ) -> PooledRequest:
        """The sequence of a request that is pooled; see `prepare`."""
        pooler = require_pooler(self._limits.pooler, params)
        grant = self._budgets.grant(options, arrival)
        self._bounds.check_prompt(prompt)
        tokens = self._tokens(prompt)
        if isinstance(prompt, Mapping) and "output_token_ids" in prompt:
            raise InvalidRequestError("output_token_ids go on with a text, and this request has none", param="output_token_ids")
        self._check_fits(len(tokens), grant)
        reader = TOKEN_VECTORS if params.task == "token_embed" else WHOLE if pooler.whole else POOLED if params.embeds else HEAD
        request = EngineRequest(
            id=f"{request_id}/{self._origin}{next(self._counter)}/0",
            prompt=tuple(tokens),
            params=NOTHING_CHOSEN,
            max_tokens=0,
            seed=0,
            eos_token_ids=frozenset(),
            task=pooling_task_name(pooler.pooling_of(params), reader),
            **self._terms(grant, options, arrival),
        )
        return PooledRequest(request, pooler)

    def _check_fits(self, tokens: int, grant: Grant) -> None:
        """Raise for a prompt that is longer than the context, or than the request may ever hold."""
        limit, name = self._limits.max_model_len, "max_model_len"
        if grant.max_kv_tokens is not None and grant.max_kv_tokens < limit:
            limit, name = grant.max_kv_tokens, grant.kv_limit
        if tokens > limit:
            raise ContextLengthError(f"prompt has {tokens} tokens, but {LONGEST} {limit} ({name})", param="prompt")
        if grant.max_total_tokens is not None and tokens > grant.max_total_tokens:
            raise InvalidRequestError(
                f"max_total_tokens is {grant.max_total_tokens}, but the prompt has {tokens} tokens", param="max_total_tokens"
            )

    def _terms(self, grant: Grant, options: RequestOptions, arrival: float) -> dict[str, Any]:
        """What a request is scheduled by, whatever it asks for."""
        return {
            "cache_root": self.cache_root(options),
            "arrival": arrival,
            "tenant": options.tenant,
            "service_class": grant.service_class,
            "queue_deadline": grant.queue_deadline,
            "own_queue_timeout": grant.own_queue_timeout,
            "of_list": options.of_list,
            "deadline": grant.deadline,
            "adapter": options.adapter,
        }

    def _tokens(self, prompt: Prompt) -> Sequence[int]:
        fields: Mapping[str, Any] = prompt if isinstance(prompt, Mapping) else {"prompt": prompt}
        tokens: Sequence[int]
        if "prompt_token_ids" in fields:
            tokens = fields["prompt_token_ids"]
            if not isinstance(tokens, list | tuple):
                raise InvalidRequestError("prompt_token_ids must be a list of token ids", param="prompt")
        else:
            text = fields.get("prompt")
            if not isinstance(text, str):
                raise InvalidRequestError("prompt must be a string or a dict with prompt or prompt_token_ids", param="prompt")
            if self._tokenizer is None:
                raise InvalidRequestError("a text prompt needs a tokenizer, and none is loaded", param="prompt")
            if not text:
                raise InvalidRequestError("prompt must not be empty", param="prompt")
            tokens = OwnTokenIds(self._tokenizer.encode(text))
        if not (isinstance(tokens, OwnTokenIds) and self._knows_own):
            self._check_ids("prompt", tokens)
        if not tokens:
            raise InvalidRequestError("prompt must not be empty", param="prompt")
        return tokens

    def _output(self, prompt: Prompt, params: SamplingParams, max_tokens: int) -> tuple[int, ...]:
        """Tokens of the output that there are already."""
        if not isinstance(prompt, Mapping) or "output_token_ids" not in prompt:
            return ()
        param = "output_token_ids"
        output: Any = prompt.get(param)
        if "prompt_token_ids" not in prompt or not isinstance(output, list | tuple):
            raise InvalidRequestError(f"{param} must be a list of token ids, beside prompt_token_ids", param=param)
        self._check_ids(param, output)
        if params.n != 1 or params.prompt_logprobs is not None:
            raise InvalidRequestError(f"{param} needs n 1, and no prompt_logprobs: one sequence goes on", param=param)
        if output and len(output) >= max_tokens:
            raise InvalidRequestError(
                f"{param} has {len(output)} tokens, but max_tokens, which counts them, is {max_tokens}", param=param
            )
        stops = {*params.stop_token_ids, *(() if params.ignore_eos else self._limits.eos_token_ids)}
        if output and output[-1] in stops:
            raise InvalidRequestError(f"{param} ends with {output[-1]}, which ends the sequence: it is complete", param=param)
        return tuple(output)

    def _max_tokens(self, prompt: int, params: SamplingParams, grant: Grant) -> int:
        left = self._room(prompt, params, grant)
        asked = self._limits.default_max_tokens if params.max_tokens is None else params.max_tokens
        wanted = left if asked is None else min(asked, left)
        if grant.max_total_tokens is None:
            return wanted
        least = 0 if params.scores_only else 1
        share = (grant.max_total_tokens - prompt) // params.n
        if share < least:
            raise InvalidRequestError(
                f"max_total_tokens is {grant.max_total_tokens}, but a prompt of {prompt} tokens and at least "
                f"{least} tokens for each of {params.n} sequences make {prompt + least * params.n}",
                param="max_total_tokens",
            )
        return min(wanted, share)

    def _room(self, prompt: int, params: SamplingParams, grant: Grant) -> int:
        """Tokens that the context, or the pages that the request may ever hold, leave a sequence after its prompt."""
        limit, name = self._limits.max_model_len, "max_model_len"
        if grant.max_kv_tokens is not None and grant.max_kv_tokens < limit:  # it would wait for pages for ever
            limit, name = grant.max_kv_tokens, grant.kv_limit
        if params.scores_only and prompt - 1 <= limit:  # the last token is only scored
            return 0
        if prompt >= limit:
            raise ContextLengthError(
                f"prompt has {prompt} tokens, but {LONGEST} {limit} ({name}) and one must be left for output: "
                "the prompt is too long",
                param="prompt",
            )
        left = limit - prompt
        if params.max_tokens is not None and params.max_tokens > left and self._limits.strict:
            raise ContextLengthError(
                f"max_tokens is {params.max_tokens}, but {LONGEST} {limit} ({name}), of which a prompt of {prompt} tokens "
                f"leaves {left}",
                param="max_tokens",
            )
        return left

    def _check_scores(self, params: SamplingParams, prompt: int) -> None:
        start = params.prompt_logprobs_start
        if start and start >= prompt:
            raise InvalidRequestError(
                f"prompt_logprobs_start is {start}, but the prompt has {prompt} tokens", param="prompt_logprobs_start"
            )
        if params.scores_only and prompt < 2:
            raise InvalidRequestError(
                "max_tokens 0 needs a prompt of at least 2 tokens: the first has no log-probability", param="max_tokens"
            )

    def _check_satisfiable(self, params: SamplingParams) -> None:
        if params.n > self._limits.max_sequences:
            raise InvalidRequestError(f"n must be at most {self._limits.max_sequences} (max_waiting), got {params.n}", param="n")
        allowed = params.allowed_token_ids
        stops = {*params.stop_token_ids, *(() if params.ignore_eos else self._limits.eos_token_ids)}
        if params.min_tokens and allowed is not None and stops.issuperset(allowed):
            raise InvalidRequestError(
                "allowed_token_ids must hold more than stop tokens, which min_tokens forbids", param="allowed_token_ids"
            )

    def _check_ids(self, name: str, ids: Collection[object]) -> None:
        if set(map(type, ids)) <= {int}:  # there may be very many: look at each only to name the wrong one
            known = cast(Collection[int], ids)
            if not known or (min(known) >= 0 and max(known) < self._limits.vocab_size):
                return
        for token in ids:
            if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < self._limits.vocab_size:
                raise InvalidRequestError(
                    f"{name} has {token!r}: token ids are integers from 0 to {self._limits.vocab_size - 1}", param=name
                )


def _roots(namespace: CacheNamespace) -> Callable[[str], bytes]:
    """The root of a namespace with a salt."""
    return lru_cache(maxsize=KNOWN_ROOTS)(lambda salt: replace(namespace, salt=salt).root())


def _mix(seed: int, index: int | str) -> int:
    digest = hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
