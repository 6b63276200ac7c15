"""Names of models with a profile, `org/name:profile`: a request parameter of the model, or a model of its own."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sie_triton.client.failures import NotServed
from sie_triton.contract.spec import SPEC_PARAMETER
from sie_triton.errors import InputError


class Profiles(NamedTuple):
    """The names of a model's profiles; those `apart` need weights of their own and are served as `model.profile`."""

    shared: Sequence[str]
    apart: Sequence[str]

    def __contains__(self, profile: object) -> bool:
        return profile in self.shared or profile in self.apart

    @classmethod
    def of(cls, step: Any) -> "Profiles":
        """Read them from the configuration of a model's first step, as JSON or protobuf."""
        spec = spec_in(step)
        return cls([profile["name"] for profile in spec["profiles"]], spec["apart"])

    def applied(self, model: str, profile: str, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Return the model to call and the options of the call, for `model` with `profile`.

        NotServed if the model has no such profile, InputError if `options` name another one.

        >>> Profiles(["default", "fast"], ["large"]).applied("org/m", "fast", {})
        ('org/m', {'profile': 'fast'})
        >>> Profiles(["default", "fast"], ["large"]).applied("org/m", "large", {"lora": "x"})
        ('org/m.large', {'lora': 'x'})
        """
        if profile not in self:
            names = ", ".join((*self.shared, *self.apart))
            raise NotServed(f"model: {model} has no profile {profile}; its profiles are {names}", f"{model}:{profile}")
        inner = options.get("options")
        for given in (options, inner if isinstance(inner, Mapping) else {}):
            if given.get("profile") not in (None, profile):
                other = repr(given["profile"])[:80]
                raise InputError.at("profile", f"{other} differs from that of {model}:{profile}; give one of them")
        if profile in self.apart:
            return f"{model}.{profile}", {name: value for name, value in options.items() if name != "profile"}
        return model, {**options, "profile": profile}


def spec_in(step: Any) -> Mapping[str, Any]:
    """Return the model's specification from the configuration of its first step, as JSON or protobuf."""
    config = step if isinstance(step, dict) else step.config
    parameters = config["parameters"] if isinstance(config, dict) else config.parameters
    found = parameters[SPEC_PARAMETER]
    spec: Mapping[str, Any] = json.loads(found["string_value"] if isinstance(config, dict) else found.string_value)
    return spec


def first_step(model: str, ensemble: Any) -> str:
    """Return the name of the first step of a model, by its configuration as JSON or protobuf; NotServed without one."""
    if isinstance(ensemble, dict):
        steps = [step["model_name"] for step in ensemble.get("ensemble_scheduling", {}).get("step", ())]
    else:
        steps = [step.model_name for step in ensemble.config.ensemble_scheduling.step]
    if not steps:
        raise NotServed(f"model: {model} has no profiles, because it is no model of SIE", model)
    return str(steps[0])
