"""Parts of the launcher that need no tritonserver."""

import json
import os
import subprocess
import sys
import threading
from contextlib import nullcontext, suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from sie_triton.errors import ServerError, SettingsError
from sie_triton.records.serving_file import locked
from sie_triton.server import launch
from sie_triton.server.companions import controller
from sie_triton.server.launch import Server
from sie_triton.settings import Settings, read_settings
from sie_triton.settings.sources import FILE_VARIABLE, PREFIX
from sie_triton.system.native.builds import PRIVACY
from sie_triton.system.native.loading import preloading, put
from sie_triton.system.processes import supervisor
from sie_triton.system.processes.command_line import is_visible
from sie_triton.system.processes.limits import ProcessLimits
from sie_triton.system.processes.log import Log
from sie_triton.system.processes.supervisor import Supervisor

SECRET = "--restricted=key=s3cret"
PRINTS_ITS_ARGUMENTS = """
import json, os, sys
arguments, variables = sys.argv[1:], [each for each in os.environ if "HIDDEN" in each]
print(json.dumps([arguments, variables]), flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def privacy(tmp_path_factory) -> dict[str, str]:
    """Environment of a program that loads the library first, with two hidden arguments."""
    library = tmp_path_factory.mktemp("privacy") / "privacy.so"
    assert put(PRIVACY, library)
    hidden = {"SIE_HIDDEN_ARGUMENT_0": SECRET, "SIE_HIDDEN_ARGUMENT_1": "--more"}
    return {**preloading(library, os.environ), **hidden}


def start(environment: dict[str, str]) -> subprocess.Popen[bytes]:
    hidden = ["$SIE_HIDDEN_ARGUMENT_0", "$SIE_HIDDEN_ARGUMENT_1", "$SIE_HIDDEN_ARGUMENT_2", "$HOME"]
    command = [sys.executable, "-c", PRINTS_ITS_ARGUMENTS, "--shown", *hidden]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def test_a_program_gets_hidden_arguments_that_no_command_line_contains_at_any_time(privacy):
    """The programs that it starts do not get them; an argument that names no such variable stays."""
    seen, ended = set(), threading.Event()

    def look() -> None:
        while not ended.is_set():
            for child in Path(f"/proc/self/task/{main}/children").read_text().split():
                with suppress(OSError):
                    seen.add(Path(f"/proc/{child}/cmdline").read_bytes())

    main = threading.get_native_id()
    looker = threading.Thread(target=look)
    looker.start()
    for _ in range(8):
        with start(privacy) as process:
            arguments, variables = json.loads(process.stdout.readline())
            assert arguments == ["--shown", SECRET, "--more", "$SIE_HIDDEN_ARGUMENT_2", "$HOME"]
            assert variables == []
            assert not is_visible(process.pid, "s3cret")
            assert is_visible(process.pid, "--shown")
    ended.set()
    looker.join()
    assert any(b"--shown" in command for command in seen)
    assert [command for command in seen if b"s3cret" in command] == []


def of_a_sleeping_triton(directory: Path) -> Settings:
    """Return the settings of a server whose tritonserver does nothing."""
    binary = directory / "bin" / "tritonserver"
    binary.parent.mkdir()
    binary.write_text("#!/bin/sh\nsleep 60")
    binary.chmod(0o755)
    (directory / "data").mkdir(mode=0o700)
    return read_settings(data_dir=directory / "data", tritonserver=binary)


def test_a_server_that_cannot_hide_its_token_starts_with_a_warning(tmp_path, monkeypatch):
    settings = of_a_sleeping_triton(tmp_path)
    for can_hide in (True, False):
        with monkeypatch.context() as patch:
            if not can_hide:
                patch.setattr(launch, "put", lambda build, library: False)
            with Server(settings, tmp_path / "repository") as server:
                assert server.shows_its_token == (not can_hide)


CREATES_SHARED_MEMORY = """
import ctypes, os, sys, tempfile
libc = ctypes.CDLL(None)
os.umask(0)
memory = libc.shm_open(sys.argv[1].encode(), os.O_RDWR | os.O_CREAT, 0o644)
created = os.fstat(memory).st_mode
os.fchmod(memory, 0o644)  # Boost
others = tempfile.TemporaryFile()
os.fchmod(others.fileno(), 0o644)
print(*(oct(mode & 0o777) for mode in (created, os.fstat(memory).st_mode, os.fstat(others.fileno()).st_mode)))
"""


def test_shared_memory_that_tritonserver_creates_is_closed_to_other_users(privacy):
    name = f"/sie_test_{os.getpid()}"
    command = [sys.executable, "-c", CREATES_SHARED_MEMORY, name]
    try:
        for given, modes in ((privacy, "0o600 0o600 0o644"), (os.environ, "0o644 " * 3)):
            ended = subprocess.run(command, env=given, capture_output=True, text=True, check=True)
            assert ended.stdout.split() == modes.split()
            Path("/dev/shm", name[1:]).unlink()
    finally:
        Path("/dev/shm", name[1:]).unlink(missing_ok=True)


def test_the_library_is_loaded_before_those_of_the_user():
    given = {"LD_PRELOAD": "/x/jemalloc.so", "A": "1"}
    assert preloading(Path("/d/l.so"), given) == {"LD_PRELOAD": "/d/l.so:/x/jemalloc.so", "A": "1"}
    assert preloading(Path("/d/l.so"), {}) == {"LD_PRELOAD": "/d/l.so"}


def test_each_start_serves_what_is_in_the_repository_by_then(tmp_path):
    """Models may be added and removed while the server runs."""
    settings = of_a_sleeping_triton(tmp_path)

    def loaded(*models):
        for name in (*models, "a@2-inference", ".a.old"):
            (tmp_path / "repository" / name).mkdir(parents=True, exist_ok=True)
            (tmp_path / "repository" / name / "config.pbtxt").touch()
        server.start()
        return [flag.partition("=")[2] for flag in server.command() if flag.startswith("--load-model")]

    with Server(settings, tmp_path / "repository") as server:
        assert loaded("a") == ["a"]
        assert loaded("b", "b-score") == ["a", "b", "b-score"]
        # Triton's default, 30 s, is too short for many first starts on a busy machine.
        assert "--backend-config=python,stub-timeout-seconds=300" in server.command()
        assert "--backend-config=python,thread-pool-size=4" in server.command()


def test_the_repository_does_not_change_while_triton_reads_it(tmp_path, monkeypatch):
    """Triton would end if a model that it is to load is gone; a change that takes long does not hold up its start."""
    settings = of_a_sleeping_triton(tmp_path)

    def can_change() -> bool:
        with locked(settings.data_dir, 0.0) as is_ours:
            return is_ours

    with Server(settings, tmp_path / "repository", change_s=0.1) as server:
        assert not can_change()
        server.start()
        assert not can_change()
        monkeypatch.setattr(server, "_answers", lambda path: True)
        server.wait_ready()
        assert can_change()
        with locked(settings.data_dir) as is_ours:
            assert is_ours
            server.start()
        server.stop()
        assert can_change()


@pytest.mark.parametrize(
    ("version", "outcome"),
    [("2.46.0", pytest.raises(ServerError, match="too old")), ("2.47.0", nullcontext()), ("2.54.0dev", nullcontext())],
)
def test_a_tritonserver_whose_steps_cannot_answer_later_is_refused(tmp_path, version, outcome):
    settings = of_a_sleeping_triton(tmp_path)
    (tmp_path / "v2").write_text(json.dumps({"version": version}))
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=tmp_path)) as triton:
        threading.Thread(target=triton.serve_forever, daemon=True).start()
        server = Server(settings.model_copy(update={"http_port": triton.server_port}), tmp_path / "repository")
        with outcome:
            server.check_version()
        triton.shutdown()


class Dying:
    """A tritonserver that dies; `starts` has, for each restart, whether it becomes ready."""

    name, log = "tritonserver", Log(Path("tritonserver.log"))

    def __init__(self, starts: list[bool], deaths: list[str]) -> None:
        self.starts, self.deaths = starts, deaths

    def wait(self) -> str | None:
        return self.deaths.pop(0) if self.deaths else None

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def wait_ready(self) -> None:
        if not self.starts.pop(0):
            raise ServerError("the end of the log")


@pytest.fixture
def slept(monkeypatch):
    seconds: list[float] = []

    class Recorded(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            seconds.append(timeout)
            return False

    monkeypatch.setattr(supervisor, "Event", Recorded)
    return seconds


def test_restarts_back_off_while_tritonserver_dies_at_once(slept):
    said: list[str] = []
    Supervisor(Dying([True, True, True], ["by SIGSEGV", "by SIGKILL", "with status 1"]), said.append).keep_running()
    assert slept == [0, 1, 2]
    assert [line.split(",")[0] for line in said[::2]] == [
        "tritonserver ended by SIGSEGV",
        "tritonserver ended by SIGKILL",
        "tritonserver ended with status 1",
    ]
    assert all(line.startswith("tritonserver was restarted in") for line in said[1::2])


def test_a_tritonserver_that_ran_steadily_is_restarted_at_once(slept):
    dying, limits = Dying([True] * 9, ["by SIGKILL"] * 9), ProcessLimits(steady_s=0)
    Supervisor(dying, lambda _: None, limits=limits).keep_running()
    assert slept == [0] * 9


def test_a_tritonserver_that_never_becomes_ready_is_given_up(slept):
    with pytest.raises(
        ServerError, match="started 5 times and did not become ready; the last error:\nthe end of the log"
    ):
        Supervisor(Dying([False] * 5, ["by SIGKILL"]), lambda _: None).keep_running()
    assert slept == [0, 1, 2, 4, 4]
    Supervisor(Dying([False] * 4 + [True], ["by SIGKILL"]), lambda _: None).keep_running()


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_controller_reads_the_settings_as_the_launcher_resolved_them(elsewhere, monkeypatch):
    (elsewhere / "sie.yaml").write_text("admin_token: of-the-file\npreload_models: a\nmodels_dir: m\n")
    monkeypatch.setenv("SIE_GRPC_PORT", "9001")
    monkeypatch.setenv("SIE_IDLE_EVICT_S", "7")
    settings = read_settings(grpc_port=8001, admin_token="", idle_evict_s=0.0, data_dir=elsewhere / "data")
    assert (settings.grpc_port, settings.admin_token, settings.idle_evict_s) == (8001, "", 0)
    for name, value in controller(settings, "token").environment.items():
        monkeypatch.setenv(name, value)
    assert read_settings() == settings
    assert os.environ[FILE_VARIABLE] == os.devnull


def test_a_relative_data_directory_is_the_same_wherever_the_controller_runs(elsewhere):
    environment = controller(Settings(data_dir=Path("data")), "token").environment
    assert environment[f"{PREFIX}DATA_DIR"] == str(elsewhere / "data")


def test_a_host_is_resolved_to_an_address():
    assert read_settings(host="localhost").host == "127.0.0.1"
    assert read_settings(host="0.0.0.0").host == "0.0.0.0"
    with pytest.raises(SettingsError, match=r"^--host=no host: must be an IPv4 address, or a host name"):
        read_settings(host="no host")
