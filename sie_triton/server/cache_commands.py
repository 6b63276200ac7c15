"""Implementation of `sie-triton cache`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

from sie_triton.errors import LoadError, ServerError
from sie_triton.models.catalog import select
from sie_triton.models.weights.cluster import Cluster
from sie_triton.models.weights.entries import Entry, entries
from sie_triton.models.weights.local_cache import OURS, hub_cache, repo_of, use_local_cache
from sie_triton.models.weights.object_store import StoreError
from sie_triton.models.weights.uses import Uses
from sie_triton.server.fetch import fetch
from sie_triton.settings import Settings
from sie_triton.system.printing import Console, say


def show(settings: Settings) -> None:
    use_local_cache(settings.local_cache)
    found = entries(hub_cache())
    table = Table("model", "commit", Column("MB", justify="right"), "last use", "in use")
    for entry in found:
        in_use = "yes" if entry.is_in_use else ""
        table.add_row(*map(Text, (entry.repo, entry.commit, _megabytes(entry.size), _date(entry.last_use), in_use)))
    _print(table, f"no models in {hub_cache()}; fetch one with: sie-triton cache warm MODEL")


def show_cluster(settings: Settings) -> None:
    table = Table("model", "commit", Column("MB", justify="right"))
    with _cluster(settings) as cluster:
        for entry in cluster.entries():
            table.add_row(*map(Text, (entry.repo, entry.commit, _megabytes(entry.size))))
        _print(table, f"no models in {cluster.url}; upload one with: sie-triton cache push MODEL")


def warm(settings: Settings, models: Sequence[str]) -> None:
    """Fetch the weights of `models`. LoadError says which of them cannot be had."""
    for name, directory, _ in _fetched(settings, models):
        say(f"{name}: {directory}")


def push(settings: Settings, models: Sequence[str]) -> None:
    with _cluster(settings) as cluster:
        for name, _, uses in _fetched(settings, models):
            held = [_entry(record) for record in uses.held if record.parent.name == OURS]
            if not held:
                raise ServerError(f"{name}: its weights are not from the hub; the cluster cache is for hub models only")
            for entry in held:
                sent = _push(cluster, entry)
                say(f"{entry.repo}@{entry.commit}: {_megabytes(sent)} of {_megabytes(entry.size)} MB sent")


def remove(settings: Settings, models: Sequence[str]) -> bool:
    """Remove models from the local cache; return False if one is not there, or is in use."""
    use_local_cache(settings.local_cache)
    num_removed = sum(_remove(name) for name in models)
    return num_removed == len(models)


def remove_from_cluster(settings: Settings, models: Sequence[str]) -> bool:
    """Remove models from the cluster cache; return False if one is not there."""
    with _cluster(settings) as cluster:
        num_removed = sum(_remove_from_cluster(cluster, name) for name in models)
    return num_removed == len(models)


def _fetched(settings: Settings, models: Sequence[str]) -> Iterator[tuple[str, Path, Uses]]:
    """Yield each model's name, directory and files, which are in use until the next one."""
    found = select(models, settings.models_dir, allow_hub=settings.hf_fallback, cluster=settings.cluster_cache)
    console = Console(stderr=True)
    for config in found.models:
        with Uses() as uses:
            try:
                directory = fetch(config.resolve(settings.runtime), console, uses)
            except LoadError as exc:
                raise LoadError(f"{config.sie_id}: {exc}", exc.reason) from exc
            yield config.sie_id, directory, uses


def _entry(record: Path) -> Entry:
    home = record.parents[1]
    return next(entry for entry in entries(home.parent, repo_of(home)) if entry.commit == record.stem)


def _push(cluster: Cluster, entry: Entry) -> int:
    columns = TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(f"pushing {entry.repo}", total=entry.size)
        return cluster.push(
            entry.repo, entry.commit, entry.directory, entry.refs, lambda done: progress.advance(task, done)
        )


def _remove(name: str) -> bool:
    repo, _, commit = name.partition("@")
    found = [entry for entry in entries(hub_cache(), repo) if entry.commit.startswith(commit)]
    if not found:
        say(f"{name}: not in {hub_cache()}; sie-triton cache ls lists what is there", "yellow")
    removed = [entry for entry in found if entry.remove()]
    for entry in removed:
        say(f"{entry.repo}@{entry.commit}: removed, {_megabytes(entry.size)} MB")
    for entry in found:
        if entry not in removed:
            say(f"{entry.repo}@{entry.commit}: in use, not removed; first: sie-triton evict {entry.repo}", "yellow")
    return bool(found) and found == removed


def _remove_from_cluster(cluster: Cluster, name: str) -> bool:
    size = cluster.remove(name)
    if size:
        say(f"{name}: removed from {cluster.url}, {_megabytes(size)} MB")
    else:
        say(f"{name}: not in {cluster.url}; sie-triton cache ls --cluster lists what is there", "yellow")
    return size > 0


@contextmanager
def _cluster(settings: Settings) -> Iterator[Cluster]:
    """Yield the cluster cache; ServerError if there is none, or if it cannot be used."""
    if not settings.cluster_cache:
        raise ServerError("no cluster cache is set; name it with --cluster-cache, such as s3://bucket/weights")
    try:
        yield Cluster(settings.cluster_cache)
    except StoreError as exc:
        raise ServerError(f"the cluster cache cannot be used: {exc}") from exc


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.1f}"


def _date(seconds: float | None) -> str:
    return "" if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _print(table: Table, otherwise: str) -> None:
    if table.row_count:
        Console().print(table)
    else:
        say(otherwise)
