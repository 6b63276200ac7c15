"""The run that the options of a command describe."""

import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Any

from sie_triton.cli.bulk.lines import InputLine, Source, Stream, chunks
from sie_triton.cli.bulk.options import BulkOptions
from sie_triton.cli.bulk.part import JsonPart, Run
from sie_triton.cli.bulk.records import JsonOut, Record, Sink
from sie_triton.cli.bulk.run import Progress, progress, run
from sie_triton.client import SIEClient
from sie_triton.system.printing import echo


def run_of(command: str, model: str, source: Source, form: str, parameters: dict[str, Any]) -> Run:
    """Return a run: everything that its output, of format `form`, depends on."""
    about = {"command": command, "model": model, "format": form}
    return {**about, "input": source.identity, "parameters": parameters}


def json_sink(options: BulkOptions, run: Run) -> Sink:
    """Return the sink of JSON lines: the file --output, else standard output."""
    return JsonPart(options.output, run, overwrite=options.overwrite) if options.output else JsonOut()


def execute(
    source: Source,
    sink: Sink,
    call: Callable[[SIEClient, Sequence[InputLine]], list[Record]],
    options: BulkOptions,
    query_bytes: int = 0,
    max_concurrency: int = 4,  # as SIEClient's
) -> None:
    """Send the lines of `source` and write their records to `sink`. Exit with status 1 if some have an error.

    `call` sends lines by a client and returns their records. `query_bytes` as in `chunks`. `max_concurrency` is the
    default of the option.
    """
    max_concurrency = options.max_concurrency or max_concurrency
    is_drawn = isinstance(source, Stream) and not options.is_in_terminal
    with (
        closing(sink),
        SIEClient(options.server, timeout=options.timeout, max_concurrency=max_concurrency) as client,
        progress(source, sink.num_skipped, is_shown=is_drawn) as bar,
    ):
        try:
            run(
                chunks(source.lines(sink.num_skipped), query_bytes),
                partial(call, client),
                sink,
                client,
                max_concurrency=max_concurrency,
                skip_errors=options.skip_errors,
                progress=bar,
            )
        except BaseException:
            _say_how_to_go_on(source, options, bar)
            raise
        sink.finish()
    _report(sink, options, bar)


def _report(sink: Sink, options: BulkOptions, bar: Progress) -> None:
    """Print a summary of a run. Exit with status 1 if some lines have an error."""
    if options.output:
        echo(f"{options.output}: {bar.summary()}", err=True)
    if sink.num_errors:
        echo(f"{sink.num_errors:,} of {bar.num_lines:,} lines have an error", err=True)
        sys.exit(1)


def _say_how_to_go_on(source: Source, options: BulkOptions, bar: Progress) -> None:
    if options.output and bar.num_lines and source.identity is not None:
        told = f"{options.output}.part has {bar.num_lines:,} lines; the same command continues it"
        echo(told, err=True)
