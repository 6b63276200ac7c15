"""`sie-triton lora`: LoRA adapters of a model on a running server."""

from typing import Any

import click

from sie_triton.cli.options import RUNNING, running_options, settings_of_running


@click.group()
def lora() -> None:
    """List, add and remove the LoRA adapters of a model on the running server.

    \b
    sie-triton lora add BAAI/bge-m3 banking org/bge-m3-banking  an adapter on the hub, named banking
    sie-triton lora add BAAI/bge-m3 medical ./adapters/medical  a directory that PEFT has saved
    sie-triton lora ls BAAI/bge-m3                              locations, and which are in memory
    sie-triton lora rm BAAI/bge-m3 banking

    A request selects an adapter with its parameter lora: client.encode("BAAI/bge-m3", texts, lora="banking"). The
    first such request loads it. Added adapters are kept for later starts with the same --data-dir. A model file can
    also list adapters, under loras.
    """


@lora.command()
@click.argument("model")
@click.option("--json", "as_json", is_flag=True, help="print the data of the table as JSON")
@running_options([*RUNNING, "auth_tokens"])
def ls(model: str, as_json: bool, **flags: Any) -> None:
    """List the adapters of MODEL: their locations and origins, and whether they are in memory."""
    from sie_triton.controller.lora_commands import show

    show(settings_of_running(**flags), model, as_json=as_json)


@lora.command()
@click.argument("model")
@click.argument("name")
@click.argument("source")
@running_options(RUNNING)
def add(model: str, name: str, source: str, **flags: Any) -> None:
    """Add an adapter to MODEL under NAME, from SOURCE: a directory, or an id on the model hub.

    \b
    sie-triton lora add BAAI/bge-m3 banking org/bge-m3-banking@v2

    NAME may contain letters, digits, _, ., - and /. An adapter that was added under the same name is replaced: later
    requests use the new one. The command requires SIE_ADMIN_TOKEN, or the token in --data-dir.
    """
    from sie_triton.controller.lora_commands import add as run

    run(settings_of_running(**flags), model, name, source)


@lora.command()
@click.argument("model")
@click.argument("name")
@running_options(RUNNING)
def rm(model: str, name: str, **flags: Any) -> None:
    """Remove the adapter NAME from MODEL. Requests in progress continue to use it.

    To remove an adapter that a model file lists, edit the file.
    """
    from sie_triton.controller.lora_commands import remove

    remove(settings_of_running(**flags), model, name)
