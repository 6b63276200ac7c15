"""Bring a server's repository up to date with its model files: `python -m sie_triton.pipeline.render.refresh DATA_DIR`.

    model files + serving.json → repository + serving.json → one line of JSON, a ChangeOutcome, for the controller

`--add` reads a model file from standard input, `--remove NAME` removes a model, `--mention NAME` serves a known model,
and `--forget NAME` ends that. A changed model is rendered as a new revision beside the one that is served; the
controller makes Triton load it.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from sie_triton.contract import TASKS
from sie_triton.contract.names import matches, triton_name
from sie_triton.contract.spec import ModelSpec
from sie_triton.errors import CatalogError, LoadError, ServerError
from sie_triton.models.catalog import ModelConfig
from sie_triton.models.catalog.endpoint import check_key
from sie_triton.models.catalog.load import SENT, known_models, read_sent
from sie_triton.models.catalog.selection import Selection, first_selection, selection
from sie_triton.models.families import model_of
from sie_triton.models.known_loras import added_path
from sie_triton.models.weights.locate import locate
from sie_triton.pipeline.render.build import checked_options, options_of, spec_of
from sie_triton.pipeline.render.known import find_mentioned, list_known
from sie_triton.pipeline.render.repository import (
    HOOK_NAME,
    NO_HOOK,
    all_ensembles,
    build_hook,
    is_current,
    remove,
    render,
    rendered_revision,
)
from sie_triton.pipeline.render.unloadable import causes, warnings_of
from sie_triton.records.change import CONFLICT, UNKNOWN, WRONG, ChangeOutcome, ChangeRefused
from sie_triton.records.known_file import FORWARDED, KnownFile, write_known
from sie_triton.records.serving_file import Served, Serving, file_of, locked, model_files, read_serving
from sie_triton.settings import Settings, read_settings, words
from sie_triton.settings.sources import SECRETS
from sie_triton.system.host.files import write_atomically
from sie_triton.system.host.private import private_directory


class Refresh:
    """Scan of a server's model files; holds its result until `write`.

    `models` have ensembles; `forwarded` are the specifications of those whose requests the door forwards, as JSON, by
    name. `unloadable` names the models whose requests would fail at present; only the first scan fills it.
    """

    def __init__(self, serving: Serving, settings: Settings) -> None:
        self.serving = serving
        self.outcome = ChangeOutcome()
        self.models: list[ModelConfig] = []
        self.unloadable: set[str] = set()
        self.settings = settings
        self._options = options_of(settings)
        hook = serving.data_dir / HOOK_NAME
        self._hook = hook if hook.exists() else None
        self._served: dict[str, Served] = {}
        before = KnownFile(serving.data_dir, FORWARDED).specs() or {}
        self._forwarded_before = {name: spec for name, spec in before.items() if name in serving.models}
        self.forwarded: dict[str, str] = {}
        self._forgotten: tuple[str, ...] = ()
        self._revision = serving.revision

    def start(self) -> None:
        """Render all models; CatalogError or SettingsError if a model or setting that the user gave is invalid."""
        serving, settings = self.serving, self.settings
        chosen = first_selection(
            serving.names,
            settings.models_dir,
            _files(serving.added_dir),
            allow_hub=settings.hf_fallback,
            cluster=settings.cluster_cache,
            matching=settings.name_patterns,
            preloaded=sorted(settings.preloaded),
        )
        is_known = any(matches(name, settings.name_patterns) for name in known_models())
        if not (chosen.models or chosen.problems or is_known or settings.allow_any_model):
            raise CatalogError(f"model_filter: {settings.model_filter}: matches no known model")
        asked = [model for model in chosen.models if not model.base and not serving.was_added(model.source)]
        for model in asked if serving.names else ():
            spec_of(model, settings.runtime)
        checked_options(settings, [model.sie_id for model in chosen.models if not model.is_forwarded])
        self._render(chosen, revision=0)
        if self.outcome.problems and not self._served:
            raise CatalogError("\n".join(self.outcome.problems.values()))

    def run(self) -> None:
        """Render new and changed models, and remove the ensembles of models whose file is gone."""
        serving = self.serving
        chosen = selection(
            serving.names,
            serving.own_files,
            _files(serving.added_dir),
            served={name: each.source for name, each in serving.models.items()},
            removed=(*serving.removed, *self._forgotten),
            matching=self.settings.name_patterns,
            also=(*sorted(self.settings.preloaded), *serving.mentioned),
        )
        self._render(chosen, revision=serving.revision + 1)
        self._remove()

    def add(self, text: bytes) -> None:
        """Store a model file among the added ones; raise ChangeRefused if it cannot be served."""
        config = self._read(text)
        name = triton_name(config.sie_id)
        target = self.serving.added_dir / f"{name}.yaml"
        for other, served in self.serving.models.items():
            if triton_name(other) == name and served.source != str(target) and other not in self.serving.mentioned:
                raise ChangeRefused(
                    CONFLICT, f"sie_id: {config.sie_id} is served from {served.source}; change it there"
                )
        private_directory(target.parent)
        write_atomically(target, text)
        self._forget([config.sie_id])
        self._forgotten = (config.sie_id,)
        self.outcome.model = name

    def remove(self, name: str) -> None:
        """Stop serving a model; raise ChangeRefused if it is not served, or if its file belongs to the user."""
        found = next((model for model in self.serving.models if triton_name(model) == name), None)
        if found is None:
            raise ChangeRefused(UNKNOWN, f"{name.replace('__', '/', 1)} is not served")
        self._forget([found])
        given = self.serving.models[found].source
        source = Path(file_of(given))
        if given == str(source) and self.serving.was_added(given):
            source.unlink(missing_ok=True)
        elif not self.serving.names and source.parent == self.serving.models_dir:
            raise ChangeRefused(CONFLICT, f"{found} is served from {source}; remove that file")
        else:
            self.serving = self.serving.updated(removed=(*self.serving.removed, found))
        self.outcome.model = name

    def mention(self, names: Sequence[str], forget: Sequence[str]) -> None:
        """Serve the known models `names`, and those of `forget` no longer; the outcome has the `unknown` names.

        Model files are not scanned again: all other models stay unchanged.
        """
        self._forget(forget)
        chosen = Selection(kept=self.serving.models.keys() - set(forget), problems=dict(self.serving.problems))
        new = [name for name in names if name not in self.serving.models]
        for name, model in find_mentioned(new, self.serving, self.settings):
            if isinstance(model, str):
                self.outcome.unknown[name] = model
            else:
                chosen.models.append(model)
        self._render(chosen, revision=self.serving.revision + 1)
        mentioned = (*self.serving.mentioned, *(model.sie_id for model in chosen.models))
        self.serving = self.serving.updated(mentioned=mentioned)
        self._remove()

    def _forget(self, names: Sequence[str]) -> None:
        left = tuple(name for name in self.serving.mentioned if name not in names)
        self.serving = self.serving.updated(mentioned=left)

    def write(self) -> None:
        """Write the result of the scan to forwarded.json and serving.json."""
        write_known(self.serving.data_dir, self.forwarded, FORWARDED)
        self.serving = self.serving.updated(
            models=self._served, problems=self.outcome.problems, revision=self._revision
        )
        self.serving.write()

    def _read(self, text: bytes) -> ModelConfig:
        try:
            config = read_sent(text)
            spec = spec_of(config, self.settings.runtime)
            self._check_key(config, spec)
            _check_weights(config, spec)
        except CatalogError as exc:
            raise ChangeRefused(WRONG, str(exc).replace(f"{SENT}: ", "")) from exc
        return config

    def _render(self, chosen: Selection, revision: int) -> None:
        self.outcome.problems = chosen.problems
        kept = set(chosen.kept)
        for model in chosen.models:
            try:
                self._render_one(model, revision)
            except CatalogError as exc:
                chosen.problems[model.source] = str(exc)
                kept.add(model.sie_id)
            else:
                self.models += [] if model.is_forwarded else [model]
                self.outcome.warnings += model.warnings()
        self._served |= {name: each for name, each in self.serving.models.items() if name in kept}
        self.forwarded |= {name: spec for name, spec in self._forwarded_before.items() if name in kept}

    def _render_one(self, model: ModelConfig, revision: int) -> None:
        spec = spec_of(model, self.settings.runtime)
        if self.serving.was_added(model.source):
            self._check_key(model, spec)
        name, repository = triton_name(model.sie_id), self.serving.repository
        found, before = rendered_revision(repository, name), self.serving.models.get(model.sie_id)
        changed_at = datetime.now(UTC).isoformat(timespec="seconds")
        if spec.is_forwarded:
            self._forward(spec, Served(model.source, changed_at))
            return
        if found is not None and is_current(repository, spec, self._options, found):
            changed_at = before.changed_at if before else changed_at
        else:
            if found is not None:
                _check_weights(model, spec)
            render(repository, [spec], self._options, self._hook, revision)
            self._revision = revision
            (self.outcome.added if found is None else self.outcome.changed).append(name)
        loras = spec.loras if model_of(spec).takes_loras else None
        self._served[model.sie_id] = Served(model.source, changed_at, loras)

    def _forward(self, spec: ModelSpec, served: Served) -> None:
        name, before = spec.model, self.serving.models.get(spec.model)
        self.forwarded[name] = spec.to_json()
        if before and self.forwarded[name] == self._forwarded_before.get(name):
            served = before
        else:
            (self.outcome.changed if before else self.outcome.added).append(triton_name(name))
        self._served[name] = served

    def _check_key(self, model: ModelConfig, spec: ModelSpec) -> None:
        try:
            if spec.endpoint is not None:
                check_key(spec.endpoint, words(self.settings.api_key_variables))
        except ValueError as exc:
            raise CatalogError(f"{model.source}: {exc}") from exc

    def _remove(self) -> None:
        """Remove the ensembles of the models that are served no longer, or forwarded now."""
        wanted = set(map(triton_name, self._served.keys() - self.forwarded.keys()))
        gone = self._forwarded_before.keys() - self._served.keys()
        self.outcome.removed += sorted(map(triton_name, gone))
        of_tasks = tuple(f"-{task}" for task in TASKS)
        for name in all_ensembles(self.serving.repository):
            if not name.endswith(of_tasks) and name not in wanted:
                remove(self.serving.repository, name)
                self.outcome.removed += [] if name in map(triton_name, self.forwarded) else [name]


def start(settings: Settings, names: Sequence[str]) -> Refresh:
    """Render the whole repository, for a launcher; the outcome's `warnings` are for the user."""
    settings = settings.model_copy(
        update={
            "device": settings.runtime.device,
            "data_dir": settings.data_dir.absolute(),
            "models_dir": settings.models_dir and settings.models_dir.absolute(),
        }
    )
    given = settings.model_dump(mode="json", exclude={"auth_mode", *SECRETS}, exclude_none=True)
    (private_directory(settings.data_dir) / HOOK_NAME).unlink(missing_ok=True)
    built = build_hook(settings.data_dir)
    first = Refresh(Serving(tuple(names), given, os.getcwd()), settings)
    first.start()
    first.outcome.warnings += [f"not served: {line}" for line in first.outcome.problems.values()]
    first.outcome.warnings += [NO_HOOK] if built is None else []
    found = causes(settings, [model.resolve(settings.runtime) for model in first.models])
    first.outcome.warnings += warnings_of(found)
    first.unloadable = {model for models in found.values() for model in models}
    first.write()
    return first


def refresh(
    data_dir: Path,
    *,
    add: bytes | None = None,
    remove: str = "",
    mention: Sequence[str] = (),
    forget: Sequence[str] = (),
) -> ChangeOutcome:
    """Scan the model files again and render what has changed, after the change if one is given."""
    with locked(data_dir):
        serving = read_serving(data_dir)
        if serving is None:
            raise ServerError(f"{data_dir}: no server of this version uses this data directory")
        with suppress(OSError):  # relative paths of models are then not found, which is reported
            os.chdir(serving.cwd)
        look = Refresh(serving, read_settings(**serving.settings))
        try:
            if add is not None:
                look.add(add)
            if remove:
                look.remove(remove)
        except ChangeRefused as exc:
            return ChangeOutcome(refused=exc.why, reason=str(exc))
        if mention or forget:
            look.mention(mention, forget)
        else:
            if serving.models_dir:  # the package's own model files do not change
                list_known(look.serving, look.settings)
            look.run()
        look.write()
        for model in look.outcome.removed if remove else ():
            added_path(serving.loras_dir, model).unlink(missing_ok=True)
        return look.outcome


def _check_weights(model: ModelConfig, spec: ModelSpec) -> None:
    """Raise CatalogError if local weights are missing, so that the current revision stays in service.

    Weights from the hub are fetched with the first load.
    """
    if not spec.is_forwarded and not spec.weights.startswith("hub://"):
        try:
            locate(spec.weights, allow_hub=False)
        except LoadError as exc:
            raise CatalogError(f"{model.source}: {exc}") from exc


def _files(directory: Path) -> list[Path]:
    return model_files(directory) if directory.is_dir() else []


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("--add", action="store_true")
    parser.add_argument("--remove", default="")
    parser.add_argument("--mention", action="append", default=[])
    parser.add_argument("--forget", action="append", default=[])
    given = parser.parse_args()
    add = sys.stdin.buffer.read() if given.add else None
    try:
        outcome = refresh(given.data_dir, add=add, remove=given.remove, mention=given.mention, forget=given.forget)
    except OSError as exc:  # such as a full disk, which takes no log either
        sys.stdout.write(f"the repository was not brought up to date: {exc}")
        sys.exit(1)
    sys.stdout.write(json.dumps(asdict(outcome)))


if __name__ == "__main__":
    main()
