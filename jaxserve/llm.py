"""LLM: offline inference in this process, with vLLM's names and shapes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from jaxserve.adapters.request import LoRARequest
from jaxserve.adapters.trees import LoraSettings
from jaxserve.clock import RealClock
from jaxserve.config.fields import EngineConfig
from jaxserve.engine.adapters import EngineAdapters
from jaxserve.engine.build import EngineReport, build_engine
from jaxserve.engine.config_files import ConfigFiles
from jaxserve.engine.given import GivenParams
from jaxserve.engine.intake import NO_OPTIONS
from jaxserve.engine.pause import PauseMode
from jaxserve.engine.sleeping import Sleep, SleepTag
from jaxserve.engine.turns import Turns
from jaxserve.engine.weight_updates import WeightUpdates, WeightVersion
from jaxserve.errors import CheckpointError, ConfigError, InvalidRequestError
from jaxserve.executor.held_weights import PIECE_BYTES
from jaxserve.executor.programs import CompileProgress, silent
from jaxserve.heap import give_back
from jaxserve.jax_settings import engine_settings
from jaxserve.models.binding import Params
from jaxserve.models.config import DecoderConfig
from jaxserve.offline import OnOutput, drive, for_each, prepare_text
from jaxserve.offline_likelihood import Likelihoods, OnLikelihood, Pair, tokens_of
from jaxserve.offline_pooling import (
    EmbeddedTexts,
    classification,
    embedding,
    pairs_of,
    prepare_pooled,
    relevance,
    similarity,
)
from jaxserve.outputs import (
    ClassificationRequestOutput,
    EmbeddingRequestOutput,
    LikelihoodOutput,
    PoolingOutput,
    PoolingRequestOutput,
    RequestOutput,
    ScoringRequestOutput,
)
from jaxserve.pooling.params import PoolingParams
from jaxserve.sampling.params import SamplingParams
from jaxserve.terminal.progress_bar import UseTqdm
from jaxserve.tokenizer.base import Tokenizer
from jaxserve.tokenizer.chat import ChatTemplate
from jaxserve.types import ChatMessage, Prompt, RequestOptions, ServiceClass
from jaxserve.weights.live.incoming import Incoming
from jaxserve.weights.live.mapping import ParamMapping

Result = TypeVar("Result")


class LLM:
    """A model, ready to generate.

    Args:
        model: checkpoint directory, or "pico" for the bundled model.
        progress: told about loading and compiling: (what, done, of how many).
        **settings: any field of EngineConfig's parts, such as `dtype="float32"`,
            `tensor_parallel_size=1`, `max_model_len=2048`, `max_num_seqs=32`. Requests that name no class are batch work here
            (`default_class`): nobody waits for their first token, so none is refused for a long queue.

    Raises ConfigError for an unknown or impossible setting, CheckpointError or UnsupportedModelError for the model.
    """

    def __init__(self, model: str = "pico", *, progress: CompileProgress | None = None, **settings: Any) -> None:
        if not isinstance(model, str):
            raise ConfigError(
                f"model is a {type(model).__name__}: its parameters do not say what model they are of; "
                "LLM.from_params(config, model, mapping=...) takes both",
                param="model",
            )
        self._build(model, None, progress, settings)

    @classmethod
    def from_params(
        cls,
        config: Any,
        params: Any,
        *,
        mapping: ParamMapping = "auto",
        version: WeightVersion | None = None,
        progress: CompileProgress | None = None,
        **settings: Any,
    ) -> LLM:
        """A model whose weights are arrays on devices, as a trainer has them: they are read where they are, and copied.

        Args:
            config: the content of a config.json, a transformers.PretrainedConfig, or a directory with config.json.
            params: a tree of arrays: nested dicts, an nnx.Module or an nnx.State.
            mapping: how its names are read: "hf", "maxtext", "tunix", or a table of `weights.live.views`; "auto" to tell by them.
            version: of the weights.
            progress: as in LLM.
            **settings: as in LLM; `tokenizer` where config is no directory with one.

        Raises as LLM does; CheckpointError names what does not fit.
        """
        files = ConfigFiles(config)
        named = {} if files.name is None else {"served_model_name": (files.name,)}
        llm = cls.__new__(cls)
        settings = {"load_format": "dummy", **named, **settings}
        llm._build(str(files.directory), GivenParams(params, mapping, version), progress, settings, files)
        return llm

    def _build(
        self,
        model: str,
        given: GivenParams | None,
        progress: CompileProgress | None,
        settings: Mapping[str, Any],
        files: ConfigFiles | None = None,
    ) -> None:
        defaults = {"model": model, "default_class": ServiceClass.BATCH.value}
        config = EngineConfig.from_settings({**defaults, **settings})
        self._files = files  # a directory that goes with it
        self._turns = Turns()
        self._built = build_engine(config, strict_length=False, clock=RealClock(), progress=progress or silent, given=given)
        give_back()

    @property
    def report(self) -> EngineReport:
        """What was built: model, memory, buckets."""
        report = self._built.report
        return replace(report, model=replace(report.model, fingerprint=self._weights.fingerprint))

    @property
    def weight_version(self) -> WeightVersion | None:
        """Of the weights that are served; None for those of a checkpoint that was never updated."""
        return self._weights.version

    @property
    def decoder(self) -> tuple[DecoderConfig, Params]:
        """What is served, and its parameters as the devices have them: an update deletes them, so ask again."""
        return self._weights.model.config, self._weights.held

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer. Raises CheckpointError if the checkpoint has none."""
        if self._built.tokenizer is None:
            raise CheckpointError("the checkpoint has no tokenizer; name one with tokenizer=")
        return self._built.tokenizer

    @property
    def chat_template(self) -> ChatTemplate | None:
        """The model's way to write a conversation as one prompt, if it has one."""
        return self._built.chat_template

    def get_default_sampling_params(self) -> SamplingParams:
        """The defaults, those of the checkpoint's generation_config.json before SamplingParams' own."""
        defaults, limit = self._built.report.model.sampling, self._built.intake.rules.limits.default_max_tokens
        return SamplingParams(**(defaults.given() | ({} if limit is None else {"max_tokens": limit})))

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: UseTqdm = True,
        options: RequestOptions | Sequence[RequestOptions] | None = None,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        on_output: OnOutput | None = None,
    ) -> list[RequestOutput]:
        """Generate for every prompt; outputs come in the prompts' order.

        Args:
            prompts: a string, {"prompt": str}, {"prompt_token_ids": [...]}, or a list of these. Beside token ids there may be
                "output_token_ids", which a partial output had: it goes on behind them.
            sampling_params: one for all, one a prompt, or None for `get_default_sampling_params()`.
            use_tqdm: whether a bar shows how many prompts are done, in a terminal and after a second; or what makes one, such as
                `tqdm.notebook.tqdm` or `functools.partial(tqdm, leave=False)`.
            options: the same of whose requests they are and what they may take; timeouts count from the call.
            lora_request: the adapter that computes the prompts, or one a prompt, None for the model as it is; needs enable_lora.
            on_output: told of each output when it is complete, in the order in which they end. What it raises ends the call.

        A request that fails alone (a timeout of its options passed, its tokens could not be decoded) keeps its place in the
        list: its output has `error` set. Raises InvalidRequestError or ContextLengthError, before anything runs, if a prompt,
        parameter or option is unfit, and EngineDeadError after a step failed.
        """
        listed: list[Prompt] = [prompts] if isinstance(prompts, str | dict) else list(prompts)
        requests = prepare_text(
            self._built,
            listed,
            for_each(len(listed), sampling_params, self.get_default_sampling_params(), "sampling_params"),
            self._options(len(listed), options, lora_request),
        )
        drive(self._built, self._turns, requests, use_tqdm, on_output)
        return [request.output for request in requests if request.output is not None]

    def chat(
        self,
        messages: Sequence[ChatMessage] | Sequence[Sequence[ChatMessage]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: UseTqdm = True,
        options: RequestOptions | Sequence[RequestOptions] | None = None,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation or a list of them through the model's chat template.

        `tools` are shown to the model, as chat completions have them; its calls are text, which jaxserve.chat_parsing reads.
        `use_tqdm` is as in `generate`.
        """
        template = self._built.chat_template
        if template is None:
            raise InvalidRequestError("the model has no chat template", param="messages")
        conversations: Any = messages if messages and not isinstance(messages[0], Mapping) else [messages]
        prompts: list[Prompt] = []
        for conversation in conversations:
            tokens = template.tokens(
                self.tokenizer,
                conversation,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                arguments={**({} if tools is None else {"tools": list(tools)}), **(chat_template_kwargs or {})},
            )
            prompts.append({"prompt_token_ids": tokens})
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm, options=options, lora_request=lora_request)

    def encode(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        *,
        use_tqdm: UseTqdm = True,
        options: RequestOptions | Sequence[RequestOptions] | None = None,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """What is pooled of every prompt, as `pooling_params` say; PoolingParams() asks for embeddings.

        The others, and what is raised, are as in `generate`.
        """
        listed: list[Prompt] = [prompts] if isinstance(prompts, str | dict) else list(prompts)
        requests = prepare_pooled(
            self._built,
            listed,
            for_each(len(listed), pooling_params, PoolingParams(), "pooling_params"),
            self._options(len(listed), options, lora_request),
        )
        drive(self._built, self._turns, requests, use_tqdm)
        return [request.output for request in requests if request.output is not None]

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        prompt_name: str | None = None,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: UseTqdm = True,
        options: RequestOptions | Sequence[RequestOptions] | None = None,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
    ) -> list[EmbeddingRequestOutput]:
        """An embedding of every prompt.

        Args:
            prompts: as in `generate`.
            pooling_params: one for all, or one a prompt; of the task "embed".
            prompt_name: which of the model's prompts (config_sentence_transformers.json) goes before texts; None for the one that
                it declares as default, if any.
            truncate_prompt_tokens: tokens to cut longer texts to, of which the beginning stays; -1 for what the context holds.
            use_tqdm, options, lora_request: as in `generate`.
        """
        listed: list[Prompt] = [prompts] if isinstance(prompts, str | dict) else list(prompts)
        texts = EmbeddedTexts(self._built, prompt_name, truncate_prompt_tokens)
        more: dict[str, Any] = {"use_tqdm": use_tqdm, "options": options, "lora_request": lora_request}
        return [one.made(embedding) for one in self.encode([texts.prompt(one) for one in listed], pooling_params, **more)]

    def classify(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        use_tqdm: UseTqdm = True,
        options: RequestOptions | Sequence[RequestOptions] | None = None,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
    ) -> list[ClassificationRequestOutput]:
        """The probability of every class, of every prompt; with the task "reward" a reward model's outputs. See `encode`."""
        params = PoolingParams(task="classify") if pooling_params is None else pooling_params
        outputs = self.encode(prompts, params, use_tqdm=use_tqdm, options=options, lora_request=lora_request)
        return [one.made(classification) for one in outputs]

    def score(
        self,
        data_1: str | Sequence[str],
        data_2: str | Sequence[str],
        *,
        use_tqdm: UseTqdm = True,
        options: RequestOptions | None = None,
        lora_request: LoRARequest | None = None,
    ) -> list[ScoringRequestOutput]:
        """How relevant each text of `data_2` is to the one of `data_1`, or to that at its place where there are as many.

        A reranker reads both together; of another model it is the cosine of their embeddings.
        """
        pairs = pairs_of(data_1, data_2)
        pooler = self._built.report.model.pooler
        more: dict[str, Any] = {"use_tqdm": use_tqdm, "options": options, "lora_request": lora_request}
        if pooler is not None and "score" in pooler.tasks:
            prompts: list[Prompt] = [{"prompt_token_ids": self.tokenizer.encode_pair(*pair)} for pair in pairs]
            return [one.made(relevance) for one in self.encode(prompts, PoolingParams(task="score"), **more)]
        texts = list(dict.fromkeys(text for pair in pairs for text in pair))
        embedded = dict(zip(texts, self.encode(texts, PoolingParams(use_activation=True), **more), strict=True))
        return [similarity(str(index), embedded[first], embedded[second]) for index, (first, second) in enumerate(pairs)]

    def loglikelihood(
        self,
        pairs: Sequence[Pair],
        *,
        use_tqdm: UseTqdm = True,
        options: RequestOptions | None = None,
        lora_request: LoRARequest | None = None,
        on_output: OnLikelihood | None = None,
    ) -> list[LikelihoodOutput]:
        """How likely each continuation is behind its context, raw. What pairs have in common is computed once.

        Args:
            pairs: of a context and a continuation, both texts or both token ids. Texts become tokens together. A continuation
                of an empty context is scored from its second token on.
            use_tqdm, options, lora_request: as in `generate`; one for all.
            on_output: told of each output as it is known.

        Raises as `generate` does.
        """
        (option,) = self._options(1, options, lora_request)
        tokens = [tokens_of(pair, self._built.tokenizer) for pair in pairs]
        return Likelihoods(self._built, tokens, option, on_output).run(self._turns, use_tqdm)

    def load_lora_adapter(
        self,
        lora_name: str,
        lora_path: str | Path | None = None,
        *,
        params: Any = None,
        config: LoraSettings | None = None,
        mapping: ParamMapping = "auto",
        load_inplace: bool = False,
        pin: bool = False,
    ) -> None:
        """Let requests name an adapter, also as the `adapter` of their options. Any thread may call it.

        Args:
            lora_path: its directory.
            params: in place of a directory its arrays: a dict of them by PEFT's names, or LoRA's part of a trainer's tree, an
                nnx.State or an nnx.Module that has it.
            config: what an adapter_config.json says of them; `r` and `lora_alpha` are needed.
            mapping: how the names of params are read, as in `from_params`; "hf" are PEFT's.
            load_inplace: whether it may replace one of the same name. What runs finishes with the one that it began with.
            pin: whether it stays in memory, and once it was used on the devices; fewer than max_loras may.

        Raises InvalidRequestError, ConflictError, CheckpointError or ConfigError, nothing having changed: see `AdapterStore`.
        """
        adapters = self._adapters
        if (params is None) != (config is None) or (params is None) == (lora_path is None):
            raise InvalidRequestError("either lora_path must be given, or params and config", param="lora_path")
        if lora_path is not None:
            adapters.store.load(lora_name, lora_path, in_place=load_inplace, pin=pin)
            return
        assert config is not None, "it goes with params"
        made, running = adapters.trees.make(params, config, mapping), self._built.core.scheduler.sequences
        self._call(lambda: adapters.give(lora_name, made, running.values(), in_place=load_inplace, pin=pin))

    def unload_lora_adapter(self, lora_name: str) -> None:
        """Let no request name it any more. Raises ModelNotFoundError."""
        self._adapters.store.unload(lora_name)
        self._call(lambda: self._adapters.let_go(self._built.core.scheduler.sequences.values()))

    def reset_prefix_cache(self) -> None:
        """Forget every cached prefix, pinned ones too."""
        self._call(self._built.core.scheduler.cache.flush)

    def update_weights(
        self,
        params: Any,
        version: WeightVersion | None = None,
        *,
        mode: PauseMode = "abort",
        partial: bool = False,
        mapping: ParamMapping = "auto",
        piece_bytes: int = PIECE_BYTES,
        force: bool = False,
    ) -> WeightVersion:
        """Replace the weights between two steps, in place and without compiling anything. Any thread may call it.

        Everything is checked before anything is replaced: names, shapes, dtypes, and that all are numbers.

        Args:
            params, mapping: as in `from_params`.
            version: what the weights are called from now on: a number larger than before, or a name; the next number if None.
            mode: of requests that run: "abort" ends them, with finish_reason "abort"; "wait" lets them end first, while no
                others begin; "keep" lets them go on with the new weights over the keys and values that they have.
            partial: whether `params` may be a part of the model: whole parameters, as an optimizer's frozen layers leave it.
            piece_bytes: of new weights that may be there before the old ones they replace have gone.
            force: whether a version that is not newer is taken.

        Returns the version. In `on_output` with mode "wait" it returns before the update, which comes when what runs has ended.

        Raises CheckpointError or ConfigError for a tree that does not fit, InvalidRequestError for a version, the old weights
        being served as before; and whatever a device raises meanwhile. Then requests are refused until an update succeeds.
        """
        return self._put(self._weights.model.check(params, mapping, partial=partial), version, mode, piece_bytes, force=force)

    def update_weights_from_disk(
        self,
        path: str | Path,
        version: WeightVersion | None = None,
        *,
        mode: PauseMode = "abort",
        piece_bytes: int = PIECE_BYTES,
        force: bool = False,
    ) -> WeightVersion:
        """Replace the weights by those of a checkpoint, safetensors or Orbax, of the same model; see `update_weights`.

        It is read twice: first to see that all of it is there, and all numbers.
        """
        incoming = self._weights.model.check_directory(Path(path))
        return self._put(incoming, version, mode, piece_bytes, force=force)

    def sleep(self, level: int = 1) -> None:
        """Free the KV cache and the weights, of which level 1 keeps a copy in the host's memory; what runs ends as aborted.

        Until `wake_up` requests are refused; after level 2 until the weights were updated, too.
        """
        self._call(lambda: self._sleep.sleep(level))

    def wake_up(self, tags: Collection[SleepTag] | None = None) -> None:
        """Take back what `sleep` freed: "weights", "kv_cache", or both if None."""
        self._call(lambda: self._sleep.wake_up(tags))

    @property
    def is_sleeping(self) -> bool:
        """Whether requests are refused because something is missing."""
        return self._sleep.is_on

    def _put(
        self, incoming: Incoming, version: WeightVersion | None, mode: PauseMode, piece_bytes: int, *, force: bool
    ) -> WeightVersion:
        weights = self._weights

        def put() -> tuple[WeightVersion, Future[WeightVersion]]:
            following = weights.next_version(version, force=force)
            return following, weights.put(incoming, following, mode=mode, piece_bytes=piece_bytes)

        following, done = self._call(put)
        return following if self._turns.are_mine and not done.done() else done.result()

    def _call(self, function: Callable[[], Result]) -> Result:
        """Between two turns; who follows the prefix cache hears what it changed there."""

        @engine_settings()
        def told() -> Result:
            result = function()
            self._built.core.tell()
            return result

        return self._turns.call(told)

    def _options(
        self,
        count: int,
        options: RequestOptions | Sequence[RequestOptions] | None,
        adapters: LoRARequest | Sequence[LoRARequest | None] | None,
    ) -> list[RequestOptions]:
        each = for_each(count, options, NO_OPTIONS, "options")
        return each if adapters is None else self._adapters.named(each, adapters)

    @property
    def _adapters(self) -> EngineAdapters:
        if self._built.adapters is None:
            raise InvalidRequestError("adapters need enable_lora=True", param="lora_request")
        return self._built.adapters

    @property
    def _weights(self) -> WeightUpdates:
        assert self._built.weights is not None, "an engine that was built has weights"
        return self._built.weights

    @property
    def _sleep(self) -> Sleep:
        assert self._built.sleep is not None, "an engine that was built can sleep"
        return self._built.sleep
