"""`sie-triton cache`: the weights on this machine's disk and in the cluster cache."""

import sys
from typing import Any

import click

from sie_triton.cli.options import read_model_settings, settings_options
from sie_triton.settings import read_settings

OF_MODELS = ["models_dir", "hf_fallback", "local_cache", "cluster_cache", "data_dir", "engine"]


@click.group()
def cache() -> None:
    """List, fetch, share and remove downloaded weights.

    \b
    sie-triton cache ls                       commits on this disk, with size, last use and who uses them
    sie-triton cache ls --cluster             commits in the cluster cache
    sie-triton cache warm BAAI/bge-m3         fetch weights now: cluster cache, else hub
    sie-triton cache push BAAI/bge-m3         ... and upload them to the cluster cache
    sie-triton cache rm BAAI/bge-m3           remove them from this disk
    sie-triton cache rm --cluster BAAI/bge-m3 remove them from the cluster cache

    The cluster cache is --cluster-cache (SIE_CLUSTER_CACHE), such as s3://bucket/weights. Its credentials come from
    AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL and the like.
    """


@cache.command()
@click.option("--cluster", is_flag=True, help="list the cluster cache instead of this disk")
@settings_options(["local_cache", "cluster_cache"])
def ls(cluster: bool, **flags: Any) -> None:
    """List commits of models: size, last use by this package, and whether a process uses them.

    A commit without a last use was fetched by another program; disk pressure never removes it.
    """
    from sie_triton.server.cache_commands import show, show_cluster

    settings = read_settings(**flags)
    (show_cluster if cluster else show)(settings)


@cache.command()
@click.argument("models", metavar="MODEL...", nargs=-1, required=True)
@settings_options(OF_MODELS)
def warm(models: tuple[str, ...], **flags: Any) -> None:
    """Fetch the weights of each MODEL into the local cache, so that its first request need not wait for them.

    A MODEL is what `sie-triton serve` takes: a name, a model file or a hub id.

    \b
    sie-triton cache warm BAAI/bge-m3 BAAI/bge-reranker-v2-m3
    SIE_CLUSTER_CACHE=s3://bucket/weights sie-triton cache warm --no-hf-fallback my-models/dense.yaml
    """
    from sie_triton.server.cache_commands import warm as run

    run(read_model_settings(**flags), models)


@cache.command()
@click.argument("models", metavar="MODEL...", nargs=-1, required=True)
@settings_options(OF_MODELS)
def push(models: tuple[str, ...], **flags: Any) -> None:
    """Upload the weights of each MODEL to the cluster cache; those that are not on this disk are fetched first.

    An interrupted upload is not used by any server, and the next push continues it.

    \b
    sie-triton cache push --cluster-cache s3://bucket/weights BAAI/bge-m3
    """
    from sie_triton.server.cache_commands import push as run

    run(read_model_settings(**flags), models)


@cache.command()
@click.argument("models", metavar="MODEL...", nargs=-1, required=True)
@click.option("--cluster", is_flag=True, help="remove from the cluster cache instead of this disk")
@settings_options(["local_cache", "cluster_cache"])
def rm(models: tuple[str, ...], cluster: bool, **flags: Any) -> None:
    """Remove each MODEL (org/name, on this disk also org/name@COMMIT) from this disk, or from the cluster cache.

    Weights that a server has loaded stay, and the exit status is 1: evict the model first.

    \b
    sie-triton evict BAAI/bge-m3 && sie-triton cache rm BAAI/bge-m3
    """
    from sie_triton.server.cache_commands import remove, remove_from_cluster

    settings = read_settings(**flags)
    sys.exit(0 if (remove_from_cluster if cluster else remove)(settings, models) else 1)
