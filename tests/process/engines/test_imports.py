"""What a worker imports, and what it finds afterwards; each test in a new process."""

import subprocess
import sys

WORKER = """
import sys
from sie_triton.engines.torch.imports import import_all, without_training
import_all()
unwanted = ("scipy", "sympy", "torch._dynamo", "torch.distributed.tensor", "torch._inductor")
print([name for name in unwanted if name in sys.modules])

import torch
from transformers import masking_utils, utils
print(utils.is_scipy_available(), utils.is_torch_distributed_available())
with without_training():
    print("torch._dynamo" in sys.modules, utils.is_scipy_available())
seen = []
compiled = torch.compile(lambda x: x + 1, backend=lambda module, _: seen.append("compiled") or module.forward)
print(compiled(torch.ones(2)).tolist(), seen, torch._dynamo.__spec__.name)
with masking_utils.TransformGetItemToIndex() as context:
    print(torch.vmap(lambda i: torch.arange(3)[i])(torch.tensor([2, 0])).tolist())
"""

IN_BETWEEN = """
from sie_triton.engines.torch.imports import without_training
with without_training():
    import torch._dynamo
    from torch._dynamo import config, is_compiling
    print(torch.compiler.disable(run := lambda: "same") is run, is_compiling(), config.__spec__.name)
"""


def printed(program: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_a_worker_imports_nothing_for_training_and_compiling_and_finds_it_afterwards():
    loaded, found, in_again, compiled, indexed = printed(WORKER)
    assert loaded == "[]"
    assert found == "True True"
    assert in_again == "False True"  # transformers is imported: nothing is changed
    assert compiled == "[2.0, 2.0] ['compiled'] torch._dynamo"
    assert indexed == "[2, 0]"


def test_other_parts_of_the_compiler_are_found_during_the_imports():
    assert printed(IN_BETWEEN) == ["False False torch._dynamo.config"]  # the real decorator, once it is there
