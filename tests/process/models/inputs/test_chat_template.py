"""Conversations are written as transformers writes them, and a template can do nothing else."""

import errno
import gc
import json
import subprocess
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from sie_triton.checkpoints.chat_template import read_chat_template
from sie_triton.checkpoints.limits import LIMITS
from sie_triton.errors import BusyError, InputError, LoadError
from sie_triton.models.inputs import chat_template
from sie_triton.models.inputs.chat_template import ChatTemplate, TemplateProcess
from sie_triton.models.inputs.limits import InputLimits
from tests.support.ocr import CHATML, GLM_TEMPLATE, PADDLE_TEMPLATE, asked

TALKS = [asked("Read it."), asked(system="You read."), asked("a\n  b ", "c", system="d"), asked()]
TEMPLATES = [
    CHATML,
    GLM_TEMPLATE,
    PADDLE_TEMPLATE,
    "{{ messages | tojson }}",
    "{{ messages[-1].content | tojson(indent=2) }}  {# no #}\n{% for m in messages %}\n  {{ m.role }}\n{% endfor %}\n",
    "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.role }}{% break %}{% endfor %}",
    "{% set ns = namespace(n=1) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
    "{{ bos_token }}{{ tools is none }}{{ documents is none }}{{ add_generation_prompt }}{{ nobody }}",
    "{{ dict(a=messages | length).a }}{{ range(3) | list }}",
]


@pytest.mark.usefixtures("conversations_written_here")
@pytest.mark.parametrize("template", TEMPLATES)
def test_conversations_are_those_of_the_library(template):
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    ours = ChatTemplate(template, special, "here")
    for talk in TALKS:
        (expected,), _ = render_jinja_template([talk], chat_template=template, add_generation_prompt=True, **special)
        assert ours.text(talk) == expected


@pytest.mark.usefixtures("conversations_written_here")
@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ raise_exception('no system') }}", "refuses the prompt: no system"),
        ("{{ messages.append(1) }}", "refuses the prompt: access to attribute 'append' of 'list' object is unsafe"),
        ("{{ ().__class__.__base__.__subclasses__() }}", "refuses the prompt: access to attribute '__class__'"),
        ("{{ namespace(__class__=1) }}", "refuses the prompt: a template may not set the name __class__"),
        ("{% set n = namespace() %}{% set n._x = 1 %}", "refuses the prompt: a template may not set the name _x"),
        ("{{ 1 // 0 }}", "refuses the prompt: integer division"),
        ("{{ range(10 ** 9) | list }}", "refuses the prompt: Range too big"),
        ("{% include 'x' %}", "refuses the prompt: no loader"),
        ("{{ '\\ud800' }}", "refuses the prompt: 'utf-8' codec can't encode"),
    ],
)
def test_templates_with_unsafe_or_failing_operations_are_refused(template, said):
    with pytest.raises(InputError, match=said):
        ChatTemplate(template, {}, "here").text(TALKS[0])


def test_a_template_is_run_by_a_process_with_limits():
    ours = ChatTemplate(
        "{{ messages[0].content }}{{ strftime_now('%Y')[:2] }}{{ bos_token }}", {"bos_token": "<s>"}, "here"
    )
    assert ours.text([{"role": "user", "content": "Größe"}]) == "Größe20<s>"
    with pytest.raises(LoadError, match=r"^here: cannot be read: Encountered unknown tag 'endfor'"):
        ChatTemplate("{% endfor %}", {}, "here").text([])
    with pytest.raises(InputError, match="refuses the prompt: no system"):
        ChatTemplate("{{ raise_exception('no system') }}", {}, "here").text([])


DOUBLED = "{% set ns.x = ns.x ~ ns.x %}"
LOOP = "{% for i in range(99999) %}"
END = "{% endfor %}"


@pytest.mark.parametrize(
    "template",
    [
        "{{ 'x' * 1000000000 }}",
        "{{ (messages[0].content * 1000000000) | length }}",
        "{{ 'x' | center(1000000000) }}",
        "{{ '%1000000000d' | format(1) }}",
        f"{{% set ns = namespace(x='x') %}}{DOUBLED * 40}{{{{ ns.x }}}}",
        "{% macro a(n) %}{{ a(n) }}{{ a(n) }}{% endmacro %}{{ a(1) }}",
        f"{LOOP}{LOOP}x{END}{END}",
        "{{ lipsum(n=100000) }}",
        "{{ 10 ** 10000000000 }}",
        "{{ messages | tojson(indent=1000000000) }}",
        "{{ 'x' * 2000000 }}",
    ],
)
def test_a_template_that_makes_very_much_is_refused(template):
    """As it is compiled, or as it runs."""
    with pytest.raises(InputError, match="the model's chat template refuses the prompt"):
        ChatTemplate(template, {}, "here", InputLimits(template_s=1)).text([{"role": "user", "content": "x"}])


def test_a_conversation_is_written_once(monkeypatch):
    orders = []
    monkeypatch.setattr(TemplateProcess, "ask", lambda self, order: orders.append(order) or b'{"text": "a"}')
    ours = ChatTemplate("a", {}, "here")
    assert [ours.text(talk) for talk in (TALKS[0], TALKS[0], TALKS[1])] == ["a"] * 3
    assert len(orders) == 2
    dated = ChatTemplate("{{ strftime_now('%d') }}", {}, "here")
    assert [dated.text(TALKS[0]) for _ in range(2)] == ["a"] * 2
    assert len(orders) == 4, "a date changes"


@pytest.fixture
def started(monkeypatch):
    """Processes that were started."""
    found, popen = [], subprocess.Popen

    def start(*args, **options):
        found.append(popen(*args, **options))
        return found[-1]

    monkeypatch.setattr(chat_template.subprocess, "Popen", start)
    return found


def said(ours, content):
    return ours.text([{"role": "user", "content": content}])


def test_one_process_writes_many_conversations(started):
    ours = ChatTemplate(
        "{% if messages[0].content == '' %}{{ 1 // 0 }}{% endif %}{{ messages[0].content }}", {}, "here"
    )
    assert [said(ours, text) for text in ("a", "b\nc", "ü")] == ["a", "b\nc", "ü"]
    with pytest.raises(InputError):
        said(ours, "")
    assert said(ours, "d") == "d"
    assert len(started) == 1
    del ours
    gc.collect()
    assert started[0].returncode is not None, "it ends with the template"


def test_a_process_that_takes_too_long_or_too_much_is_replaced():
    slow = f"{{% if messages[0].content == 'slow' %}}{LOOP}{LOOP}x{END}{END}{{% endif %}}"
    text = "{{ 'x' * (10 ** 9 if messages[0].content == 'large' else 1) }}"
    ours = ChatTemplate(slow + text, {}, "here", InputLimits(template_s=2))
    assert said(ours, "a") == "x"
    for each in ("slow", "large"):
        with pytest.raises(InputError):
            said(ours, each)
    assert said(ours, "b") == "x"


def test_what_the_system_ends_or_does_not_start_is_no_answer_of_the_template(started, monkeypatch):
    ours = ChatTemplate("{{ messages[0].content }}", {}, "here")
    assert said(ours, "a") == "a"
    started[0].kill()
    started[0].wait()
    assert said(ours, "b") == "b", "a process that has ended before is started again"
    write = started[1].stdin.write
    started[1].stdin = SimpleNamespace(
        write=lambda order: (started[1].kill(), write(order)), flush=lambda: None, close=started[1].stdin.close
    )
    with pytest.raises(BusyError):
        said(ours, "c")
    assert said(ours, "c") == "c"
    started[2].kill()
    started[2].wait()
    error = BlockingIOError(errno.EAGAIN, "no process left")
    monkeypatch.setattr(chat_template.subprocess, "Popen", Mock(side_effect=error))
    with pytest.raises(BusyError):
        said(ours, "d")
    monkeypatch.undo()
    assert said(ours, "d") == "d"


def test_the_chat_template_is_read_from_any_of_its_files(tmp_path):
    def saved(name, content):
        (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))
        return read_chat_template(tmp_path)

    with pytest.raises(LoadError, match=r"chat_template\.jinja is missing in .*: prompts cannot be written without it"):
        read_chat_template(tmp_path)
    several = [{"name": "tools", "template": "a"}, {"name": "default", "template": "b"}]
    assert saved("tokenizer_config.json", {"chat_template": several})[0] == "b"
    assert saved("tokenizer_config.json", {"chat_template": "c"})[0] == "c"
    assert saved("chat_template.jinja", "d") == ("d", str(tmp_path / "chat_template.jinja"))
    assert saved("chat_template.json", {"chat_template": "e"})[0] == "e"
    assert saved("processor_config.json", {"chat_template": "f"})[0] == "f"
    with pytest.raises(LoadError, match=r"processor_config\.json: chat_template: must be a string"):
        saved("processor_config.json", {"chat_template": 5})
    with pytest.raises(LoadError, match=f"must be at most {LIMITS.max_chat_template_bytes} bytes long"):
        saved("processor_config.json", {"chat_template": "x" * (LIMITS.max_chat_template_bytes + 1)})


def test_its_special_tokens_are_those_of_the_tokenizer(tmp_path):
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}|{{ eos_token }}|{{ cls_token }}")
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": {"content": "<s>"}, "eos_token": "</s>"}')
    assert ChatTemplate.read(tmp_path).text(TALKS[0]) == "<s>|</s>|"
