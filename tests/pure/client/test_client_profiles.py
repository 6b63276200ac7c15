"""Names of models with a profile."""

import pytest

from sie_triton.client.profiles import Profiles
from sie_triton.errors import InputError

PROFILES = Profiles(["default", "fast"], ["large"])


@pytest.mark.parametrize("other", ["slow", ["fast"], {}, {"fast": 1}, 5, 0, "x" * 10_000])
@pytest.mark.parametrize("options", [lambda other: {"profile": other}, lambda other: {"options": {"profile": other}}])
def test_another_profile_of_any_type_is_refused(other, options):
    with pytest.raises(InputError, match=r"profile: .* differs from that of org/m:fast; give one of them") as told:
        PROFILES.applied("org/m", "fast", options(other))
    assert len(str(told.value)) < 200


@pytest.mark.parametrize("options", [{"profile": "fast"}, {"profile": None}, {"options": {"profile": "fast"}}])
def test_the_same_profile_may_be_given_twice(options):
    assert PROFILES.applied("org/m", "fast", options) == ("org/m", {**options, "profile": "fast"})


@pytest.mark.parametrize("inner", ["x", [5], 5])
def test_options_that_are_none_are_left_to_their_own_check(inner):
    assert PROFILES.applied("org/m", "large", {"options": inner}) == ("org/m.large", {"options": inner})
