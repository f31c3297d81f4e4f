"""Warm prompts: read line by line, computed once, held if pinned."""

import pytest

from jaxserve.cache.kv_cache import KVCache
from jaxserve.cache.prefix_hash import CacheNamespace
from jaxserve.clock import RealClock
from jaxserve.config.fields import CacheConfig, SchedulerConfig
from jaxserve.config.policies import ClassPolicy, Policies
from jaxserve.engine.budgets import Budgets
from jaxserve.engine.core import EngineCore
from jaxserve.engine.intake import Intake, IntakeLimits
from jaxserve.engine.warm import Warmer, read_warm_prompts
from jaxserve.errors import ConfigError
from jaxserve.sampling.params import SamplingParams
from jaxserve.scheduler.scheduler import Scheduler
from jaxserve.tokenizer.chat import ChatTemplate
from jaxserve.types import RequestOptions, ServiceClass
from tests.support.hash_executor import HashExecutor
from tests.support.tiny_checkpoint import SPECIAL, write_tiny_checkpoint

VOCAB, CONTEXT, PAGE, PAGES, ROWS = 260, 64, 4, 41, 2


@pytest.fixture
def template(tmp_path):
    return ChatTemplate.load(write_tiny_checkpoint(tmp_path / "tiny"), None)


class Bench:
    """A small engine that is warmed, then asked."""

    def __init__(self, tokenizer=None, template=None, *, context=CONTEXT, policies=None, overlap=True, windows=(None,)):
        clock = RealClock()
        cache = KVCache(PAGES, PAGE, prefix_caching=True, windows=windows, max_chunk=16)
        config = SchedulerConfig(max_num_seqs=ROWS, max_num_batched_tokens=16)
        policies = policies or Policies()
        scheduler = Scheduler(config, cache, context, clock, policies=policies)
        self.core = EngineCore(scheduler, HashExecutor(PAGES, PAGE, ROWS, context, VOCAB, windows=windows), overlap=overlap)
        limits = IntakeLimits(
            max_model_len=context, vocab_size=VOCAB, eos_token_ids=frozenset(), max_sequences=8, seed=0, strict=True
        )
        budgets = Budgets(policies, ServiceClass.INTERACTIVE_PAID, num_pages=PAGES - 1, page_size=PAGE)
        self.intake = Intake(tokenizer, limits, CacheNamespace("m", "float32", "r"), budgets)
        self.warmer = Warmer(self.core, self.intake, tokenizer, template, clock, context)
        self.progress = []

    def warm(self, path):
        self.warmer.warm(read_warm_prompts(CacheConfig(warm_prompts=str(path))), lambda *told: self.progress.append(told))

    def cached(self, tokens, tenant=""):
        """How many tokens of a request the cache has."""
        params = SamplingParams(max_tokens=1)
        now = RealClock().now()
        (request,) = self.intake.prepare({"prompt_token_ids": tokens}, params, "r", now, RequestOptions(tenant=tenant))
        self.core.add([request])
        found = []
        while self.core.has_work:
            found += [update.num_cached for update in self.core.step()]
        self.core.scheduler.check()
        return found[0]


def write(tmp_path, *lines):
    path = tmp_path / "warm.jsonl"
    path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize("overlap", [False, True])
def test_prompts_are_in_the_cache_before_the_first_request(tokenizer, template, tmp_path, overlap):
    bench = Bench(tokenizer, template, overlap=overlap)
    path = write(
        tmp_path,
        '{"prompt": "You are a pirate."}',
        "",
        f'{{"prompt_token_ids": {list(range(5, 27))}, "tenant": "acme"}}',
        '{"messages": [{"role": "user", "content": "hello you"}], "pin": true}',
    )
    bench.warm(path)
    assert bench.progress == [("warming the prefix cache", done, 3) for done in (1, 2, 3)]
    assert not bench.core.has_work
    assert bench.cached([*tokenizer.encode("You are a pirate."), 7]) == 16
    assert bench.cached([*range(5, 27), 9, 9], "acme") == 20
    assert bench.cached([*range(5, 27), 9, 9]) == 0
    begin, user = (SPECIAL.index(token) for token in ("<s>", "<|user|>"))
    assert bench.cached([begin, user, *tokenizer.encode("hello you", add_special_tokens=False), 9, 9]) == 8


def test_only_pinned_prompts_outlive_a_flood(tokenizer, tmp_path):
    bench = Bench()
    kept, lost = list(range(5, 25)), list(range(30, 50))
    bench.warm(
        write(
            tmp_path,
            f'{{"prompt_token_ids": {kept}, "tenant": "acme", "pin": true}}',
            f'{{"prompt_token_ids": {lost}, "pin": false}}',
        )
    )
    cache = bench.core.scheduler.cache
    assert (cache.num_pinned, cache._num_pinned["acme"]) == (5, 5)
    for number in range(10):
        bench.cached([100 + number] * 40)
    assert bench.cached([*kept, 1], "acme") == 20
    assert bench.cached([*lost, 1]) == 0


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "truncated"),
        ("[]", "Expected `object`"),
        ("{}", "exactly one of prompt, prompt_token_ids and messages"),
        ('{"prompt": "a", "prompt_token_ids": [5]}', "exactly one of"),
        ('{"prompt": 5}', r"Expected `str \| null`"),
        ('{"prompt_token_ids": [5.5]}', "Expected `int`"),
        ('{"prompt": "a", "pinned": true}', "unknown field `pinned`"),
        ('{"prompt": "a", "pin": 1}', "Expected `bool`"),
        ('{"prompt": "a", "tenant": null}', "Expected `str`"),
    ],
)
def test_lines_that_cannot_be_read(tmp_path, line, message):
    path = write(tmp_path, '{"prompt": "fine"}', "", line)
    with pytest.raises(ConfigError, match=rf"warm_prompts: {path}, line 3: .*{message}") as refused:
        read_warm_prompts(CacheConfig(warm_prompts=str(path)))
    assert refused.value.param == "warm_prompts"


def test_a_line_that_is_not_unicode(tmp_path):
    path = tmp_path / "warm.jsonl"
    path.write_bytes(b'{"prompt": "\xff"}')
    with pytest.raises(ConfigError, match="line 1"):
        read_warm_prompts(CacheConfig(warm_prompts=str(path)))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"prompt": "a text"}', "a text prompt needs a tokenizer"),
        ('{"prompt_token_ids": []}', "prompt must not be empty"),
        ('{"prompt_token_ids": [260, 5, 5, 5]}', "prompt has 260"),
        ('{"prompt_token_ids": [5, 5, 5]}', "the prompt has 3 tokens, and only whole pages of 4 are cached"),
        (f'{{"prompt_token_ids": {[5] * CONTEXT}}}', "prompt has 64 tokens, but this model's maximum context length is 64"),
        ('{"messages": [{"role": "user", "content": "a"}]}', "the model has no chat template"),
        ('{"prompt_token_ids": [5, 5, 5, 5], "tenant": "a\\nb"}', "tenant must be"),
    ],
)
def test_prompts_that_cannot_be_computed(tmp_path, line, message):
    path = write(tmp_path, '{"prompt_token_ids": [5, 5, 5, 5]}', line)
    with pytest.raises(ConfigError, match=rf"warm_prompts: {path}, line 2: .*{message}"):
        Bench().warm(path)


def test_a_conversation_that_the_template_refuses(tokenizer, template, tmp_path):
    path = write(tmp_path, '{"messages": [{"content": "no role"}]}')
    with pytest.raises(ConfigError, match="line 1: messages"):
        Bench(tokenizer, template).warm(path)


def test_a_prompt_that_fails_in_the_engine(tmp_path):
    late = Policies(classes={ServiceClass.BATCH: ClassPolicy(timeout=1e-9)})
    path = write(tmp_path, '{"prompt_token_ids": [5, 5, 5, 5]}')
    with pytest.raises(ConfigError, match=r"line 1: timeout is \S+ s: the request took .* did not end in time"):
        Bench(policies=late).warm(path)


def test_more_pins_than_the_cache_takes(tmp_path):
    """A fourth of 40 pages may be pinned: 10."""
    lines = [f'{{"prompt_token_ids": {[number] * 24}, "pin": true}}' for number in (5, 6)]
    with pytest.raises(ConfigError, match="line 2: cannot pin 6 more pages: 6 of at most 10 are pinned"):
        Bench().warm(write(tmp_path, *lines))


def test_pins_leave_the_longest_sequence_its_pages(tmp_path):
    path = write(tmp_path, f'{{"prompt_token_ids": {[5] * 24}, "pin": true}}')
    Bench(context=34 * PAGE).warm(path)
    with pytest.raises(ConfigError, match=r"line 1: 6 of 40 pages are pinned, which leaves 34, .* 137 needs 35"):
        Bench(context=34 * PAGE + 1).warm(path)
    Bench(context=39 * PAGE, windows=(9,)).warm(path)


def test_no_file_and_a_missing_file(tmp_path):
    assert read_warm_prompts(CacheConfig()) == []
    with pytest.raises(ConfigError, match=r"warm_prompts: cannot read .*nothing.jsonl: No such file"):
        read_warm_prompts(CacheConfig(warm_prompts=str(tmp_path / "nothing.jsonl")))


def test_warm_prompts_need_the_prefix_cache():
    with pytest.raises(ConfigError, match="warm_prompts needs prefix_caching, which is off") as refused:
        read_warm_prompts(CacheConfig(warm_prompts="x", prefix_caching=False))
    assert refused.value.param == "warm_prompts"
