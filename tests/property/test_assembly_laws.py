"""Random conversation trees of harnesses that cut, split, reprint, edit and forget: every prompt is the right one."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from assembly_laws import assert_laws


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False))
def test_every_prompt_of_a_random_session_is_the_right_one(random: Random) -> None:
    assert_laws(random)
