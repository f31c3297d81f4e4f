"""The prompt field of a text completion."""

import pytest

from jaxserve.errors import InvalidRequestError
from server.http.prompts import prompts_in
from server.requests import MAX_PROMPTS


def test_one_request_has_a_bounded_number_of_prompts() -> None:
    assert len(prompts_in(["a"] * MAX_PROMPTS)) == len(prompts_in([[1]] * MAX_PROMPTS)) == MAX_PROMPTS
    assert prompts_in([1] * (MAX_PROMPTS + 1)) == [[1] * (MAX_PROMPTS + 1)], "token ids of one prompt"
    for many in (["a"] * (MAX_PROMPTS + 1), [[1]] * (MAX_PROMPTS + 1)):
        with pytest.raises(InvalidRequestError, match=f"at most {MAX_PROMPTS} prompts, got {MAX_PROMPTS + 1}") as refused:
            prompts_in(many)
        assert refused.value.param == "prompt"
