"""`sie-triton encode` on a file of thousands of lines: killed halfway, and continued to the same output."""

import json
import signal
import subprocess
import sys

import numpy as np
import pytest

from benchmarks.texts import texts
from sie_triton import SIEClient
from tests.conftest import TINY

NUM_LINES = 5000

# Runs the command of sys.argv, and kills it with half of the nth chunk written.
KILLED = """
import os, signal, sys
from sie_triton.cli import main
from sie_triton.cli.bulk.part import PartFile

whole, left = PartFile._write, int(sys.argv.pop(1))


def write(self, lines, records):
    global left
    left -= 1
    if left:
        return whole(self, lines, records)
    content = self._encoded(lines, records)
    self._file.write(content[: len(content) // 2 + 1])
    self._file.flush()
    os.kill(os.getpid(), signal.SIGKILL)


PartFile._write = write
main()
"""


@pytest.fixture(scope="module")
def lines():
    """Texts that begin with their number."""
    return [f"{i} {text}" for i, text in enumerate(texts(NUM_LINES, 3, 12, seed=9))]


@pytest.fixture
def command(server):
    """Return a function that runs a command, and with `kill_at` kills it while that chunk is written."""

    def run(*arguments, kill_at=0):
        program = ["-c", KILLED, str(kill_at)] if kill_at else ["-m", "sie_triton.cli"]
        words = [sys.executable, *program, *map(str, arguments), f"--url=grpc://{server.grpc}"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=200)
        assert done.returncode == (-signal.SIGKILL if kill_at else 0), done.stderr
        return done

    return run


def num_lines_of(done):
    """Return the numbers of lines that a run did and found done, from its last line."""
    words = done.stderr.replace(",", "").split()
    return int(words[1]), int(words[-5])


def test_encode_is_killed_twice_and_continued(server, command, lines, tmp_path):
    source, output = tmp_path / "texts.jsonl", tmp_path / "vectors.jsonl"
    source.write_text("".join(f"{json.dumps({'id': i, 'text': text})}\n" for i, text in enumerate(lines)))
    arguments = ["encode", TINY, "--input", source, "--output", output, "--dimensions", 16]
    command(*arguments, kill_at=3)
    command(*arguments, kill_at=4)
    assert not output.exists()
    num_done, num_found = num_lines_of(command(*arguments))
    assert num_done + num_found == NUM_LINES
    assert num_found > 5 * 200
    assert sorted(each.name for each in tmp_path.iterdir()) == ["texts.jsonl", output.name]
    records = [json.loads(line) for line in output.read_text().splitlines()]
    assert [record["id"] for record in records] == list(range(NUM_LINES))
    with SIEClient(server.grpc) as client:
        expected = client.encode(TINY, lines, options={"dimensions": 16})
    np.testing.assert_allclose(
        [record["dense"] for record in records], [result["dense"] for result in expected], atol=1e-5
    )


def test_a_reader_that_ends_early_is_no_error(server, lines, tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(lines))
    words = [sys.executable, "-m", "sie_triton.cli", "encode", TINY, f"--url=grpc://{server.grpc}", "--input"]
    process = subprocess.Popen(
        [*words, str(tmp_path / "texts.txt")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    process.stdout.readline()
    process.stdout.close()
    assert (process.wait(timeout=200), process.stderr.read()) == (1, "")
    process.stderr.close()
