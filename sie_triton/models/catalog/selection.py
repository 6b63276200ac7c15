"""The models of a running server, whose files may change. An invalid file never affects the other models."""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sie_triton.models.catalog.config import ModelConfig
from sie_triton.models.catalog.load import load_files, starter_set
from sie_triton.models.catalog.names import conflict_key
from sie_triton.models.catalog.select import (
    apart,
    clash,
    file_named,
    find_known,
    matching_models,
    select,
    with_variants,
)
from sie_triton.records.serving_file import file_of, is_model_file


@dataclass
class Selection:
    """The models to serve, the names of models that stay unchanged (`kept`), and the problems of files, by file."""

    models: list[ModelConfig] = field(default_factory=list)
    kept: set[str] = field(default_factory=set)
    problems: dict[str, str] = field(default_factory=dict)

    def read(self, paths: Iterable[Path]) -> list[ModelConfig]:
        found = load_files(paths)
        self.problems |= found.problems
        return list(found.models)


def first_selection(
    names: Sequence[str],
    models_dir: Path | None,
    added: Sequence[Path],
    *,
    allow_hub: bool,
    matching: Sequence[str],
    preloaded: Sequence[str] = (),
    cluster: str = "",
) -> Selection:
    """Select the models at start-up, and those to preload.

    CatalogError if one of the names or `models_dir` cannot be served; errors of the files in `added` become problems.
    """
    chosen = Selection()
    more = chosen.read(added)
    known = {model.sie_id for model in more}
    further = [name for name in preloaded if name not in known]
    rest = [name for name in names if name not in known] or (further if names else [])
    asked: Sequence[ModelConfig] = ()
    if rest or not names:
        found = select(rest, models_dir, allow_hub=allow_hub, cluster=cluster, matching=matching, preloaded=further)
        asked = found.models
        chosen.problems |= found.problems
    chosen.models = apart([*asked, *with_variants(more)], chosen.problems)
    return chosen


def selection(
    names: Sequence[str],
    own: Sequence[Path] | OSError | None,
    added: Sequence[Path],
    served: Mapping[str, str],
    removed: Sequence[str],
    matching: Sequence[str],
    also: Sequence[str] = (),
) -> Selection:
    """Select the models again, after files have changed. `served` maps the served models to their sources.

    `own` are the files in models_dir: None without one, the error if it cannot be read. The known models of `also` are
    served beside the selected ones. A model stays unchanged if its file or models_dir has become invalid or unreadable,
    or if it was recognised in a directory.
    """
    chosen = Selection()
    if isinstance(own, OSError):
        chosen.problems[str(own.filename)] = f"{own.filename}: cannot be read ({own.strerror})"
        own = ()
    files, more = chosen.read(own or ()), chosen.read(added)
    free_names = [name for name in also if name not in {model.sie_id for model in more}]
    further = [model for name in free_names if (model := find_known(name, files)) is not None]
    if names:
        named = {name: find_known(name, files) for name in names}
        files = [model for model in named.values() if model is not None]
        files += chosen.read(file_named(name) for name, found in named.items() if found is None and is_model_file(name))
    else:
        files = matching_models(starter_set() if own is None else files, files, matching)
    chosen.kept = {name for name, source in served.items() if name not in removed and _is_kept(source, chosen.problems)}
    selected = (*with_variants(files), *further)
    left = (model for model in selected if not {model.sie_id, model.base} & set(removed))
    asked = [*left, *with_variants(more)]
    kept = {conflict_key(name): (name, served[name]) for name in chosen.kept}
    free = []
    for model in asked:
        name, source = kept.get(conflict_key(model.sie_id), (model.sie_id, model.source))
        if source == model.source:
            free.append(model)
        else:
            chosen.problems[model.source] = clash(model, name, source)
    chosen.models = apart(free, chosen.problems, served)
    return chosen


def _is_kept(source: str, problems: Container[str]) -> bool:
    path = file_of(source)
    return not is_model_file(source) or path in problems or str(Path(path).parent) in problems
