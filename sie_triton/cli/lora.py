"""`sie-triton lora`: the LoRA adapters of a model on a running server."""

from typing import Any

import click

from sie_triton.cli.options import settings_of_running, settings_options

RUNNING = ["host", "controller_port", "data_dir", "admin_token"]


@click.group()
def lora() -> None:
    """List the LoRA adapters of a model of the running server, add some, take some out.

    \b
    sie-triton lora add BAAI/bge-m3 banking org/bge-m3-banking  an adapter of the hub, named banking
    sie-triton lora add BAAI/bge-m3 medical ./adapters/medical  a directory that PEFT has saved
    sie-triton lora ls BAAI/bge-m3                              where each is, and which are in memory
    sie-triton lora rm BAAI/bge-m3 banking

    A request names one with its parameter lora: client.encode("BAAI/bge-m3", texts, lora="banking"). It is loaded
    by the first that does. What is added stays for later starts with the same --data-dir; adapters can also stand in
    the model file, under loras.
    """


@lora.command()
@click.argument("model")
@click.option("--json", "as_json", is_flag=True, help="print what the table is made of")
@settings_options(RUNNING)
def ls(model: str, as_json: bool, **flags: Any) -> None:
    """List the adapters of MODEL: where each is, where it is from, whether it is in memory."""
    from sie_triton.controller.lora_commands import show

    show(settings_of_running(**flags), model, as_json=as_json)


@lora.command()
@click.argument("model")
@click.argument("name")
@click.argument("source")
@settings_options(RUNNING)
def add(model: str, name: str, source: str, **flags: Any) -> None:
    """Let requests of MODEL name the adapter NAME, which is in SOURCE: a directory, or an id of the model hub.

    \b
    sie-triton lora add BAAI/bge-m3 banking org/bge-m3-banking@v2

    NAME is of letters, digits, _, ., - and /. One that was added before is replaced: requests that come later get the
    new one. Only the operator can do this: it takes SIE_ADMIN_TOKEN, or the token in --data-dir.
    """
    from sie_triton.controller.lora_commands import add as run

    run(settings_of_running(**flags), model, name, source)


@lora.command()
@click.argument("model")
@click.argument("name")
@settings_options(RUNNING)
def rm(model: str, name: str, **flags: Any) -> None:
    """Take the adapter NAME from MODEL; requests that are in progress go on with it.

    One that stands in the model file is taken out there.
    """
    from sie_triton.controller.lora_commands import remove

    remove(settings_of_running(**flags), model, name)
