"""What an evaluation is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from jaxserve.config.check import check_types, require_at_least
from jaxserve.config.fields import setting
from jaxserve.errors import ConfigError

OWN_TASKS = "pico"  # the group of all tasks that jaxserve ships


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalConfig:
    """What is measured, and how."""

    tasks: str = setting(
        OWN_TASKS, "names of tasks and groups with commas between, or patterns such as 'mmlu_*'; 'list' prints what there is"
    )
    include_path: str | None = setting(None, "directory of further tasks, YAML files as lm-eval describes them")
    limit: int | None = setting(None, "documents a task, from its beginning; all by default")
    num_fewshot: int | None = setting(None, "examples in each prompt; each task's own number by default")
    fewshot_seed: int = setting(1234, "seed that draws the examples; lm-eval's own by default")
    apply_chat_template: bool | None = setting(
        None,
        "make prompts with the model's chat template; by default only if all tasks are jaxserve's own, whose prompts want it",
    )
    system_instruction: str | None = setting(None, "what every prompt begins with")
    bootstrap_iters: int = setting(1000, "samples for standard errors that have no formula; 0 for no standard errors")
    log_samples: bool = setting(False, "keep every prompt and answer in the output file")

    def __post_init__(self) -> None:
        check_types(self)
        if not self.names:
            raise ConfigError("tasks must name at least one task", param="tasks")
        if self.limit is not None:
            require_at_least("limit", self.limit, 1)
        if self.num_fewshot is not None:
            require_at_least("num_fewshot", self.num_fewshot, 0)
        require_at_least("bootstrap_iters", self.bootstrap_iters, 0)
        if self.include_path is not None and not Path(self.include_path).is_dir():
            raise ConfigError(f"include_path {self.include_path!r} is not a directory", param="include_path")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name.strip() for name in self.tasks.split(",") if name.strip())
