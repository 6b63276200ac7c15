"""Checks that this machine can serve. Each failure is one line with its remedy.

Uses only the standard library, and runs as a plain script: scripts/serve calls it before the environment exists.
"""

import ctypes
import errno
import os
import platform
import re
import shutil
import socket
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

PYTHON_VERSIONS = ((3, 11), (3, 12))
MB = 1024 * 1024

# Errors of a file system without room.
FULL = (errno.ENOSPC, errno.EDQUOT)

# Oldest driver for each major version of CUDA that a program is built for; the minor version does not matter:
# https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
MIN_DRIVERS = {11: 450, 12: 525, 13: 580}

# This file names the driver's version inside a sentence; WSL has no such file.
DRIVER_FILE = Path("/proc/driver/nvidia/version")


def check_python() -> Iterator[str]:
    """Check the interpreter of the environment, and whether Triton's Python stub can load its libpython."""
    low, high = PYTHON_VERSIONS
    version = sys.version_info[:2]
    if not low <= version <= high:
        yield f"Python {version[0]}.{version[1]} is not supported; install Python 3.11 or 3.12"
    if sys.platform != "linux" or platform.machine() != "x86_64":
        yield (
            f"{sys.platform} on {platform.machine()} is not supported by the embedded Triton; "
            "use Linux on x86-64, or the container"
        )
    glibc = platform.libc_ver()[1]
    if glibc and tuple(map(int, glibc.split(".")[:2])) < (2, 35):
        yield f"glibc {glibc} is too old for the embedded Triton (2.35 needed); use the container"
    if shared_libpython() is None:
        yield no_libpython()


def check_venv() -> Iterator[str]:
    """Check for the modules that create the environment in scripts/*; a container does not need them."""
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        python = "python{}.{}".format(*sys.version_info)
        yield f"{sys.executable} has no venv module; install it (Debian, Ubuntu: apt install {python}-venv)"


def check_ports(addresses: Mapping[str, tuple[str, int]]) -> Iterator[str]:
    """Yield a sentence for each problem; `addresses` maps a setting's name to host and port."""
    taken: dict[int, str] = {}
    for name, (host, port) in addresses.items():
        if port in taken:
            yield f"{name} and {taken[port]} are both {port}; give each a port of its own"
        taken[port] = name
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as exc:
                yield f"port {port} on {host} cannot be used ({exc.strerror}); choose another with --{name}"


def check_space(data_dir: Path, num_models: int) -> Iterator[str]:
    """Check the room in shared memory for the stubs, in /tmp for Triton, and on the disk for the data directory."""
    shm, needed = shutil.disk_usage("/dev/shm").free, num_models * 8 * MB
    if shm < needed:
        yield (
            f"/dev/shm has {shm // MB} MB free, {num_models} models need about {needed // MB} MB; "
            "give the container a larger --shm-size"
        )
    if (num_files := os.statvfs("/dev/shm").f_favail) < (needed := 3 * num_models):
        yield f"/dev/shm has room for {num_files} files, {num_models} models need {needed}; remount it with more inodes"
    if not os.access("/tmp", os.W_OK):
        yield "/tmp is not writable; Triton's Python backend makes a directory there: mount a tmpfs"
    existing = _existing(data_dir)
    disk = shutil.disk_usage(existing).free
    if disk < 1024 * MB:
        yield f"{existing} has {disk // MB} MB free, 1024 MB are needed; free some or set SIE_DATA_DIR"
    if not os.access(existing, os.W_OK):
        yield f"{existing} is not writable; set SIE_DATA_DIR to a directory that is"


def explain(error: OSError, data_dir: Path) -> str:
    """Return in one line which path an error is about, its reason, and how much room is left if there is too little."""
    is_write = error.errno in (*FULL, errno.EFBIG, errno.EIO, errno.EROFS)  # which names no file
    path = error.filename or (data_dir if is_write else "")
    if isinstance(path, int):  # the descriptor that was used
        path = data_dir
    reason = f"{os.fsdecode(path)}: {error.strerror or error}" if path else str(error.strerror or error)
    if error.errno not in FULL:
        return reason
    found = os.statvfs(_existing(Path(os.fsdecode(path))))
    return f"{reason} ({found.f_bavail * found.f_frsize // MB} MB and {found.f_favail} inodes are left)"


def _existing(path: Path) -> Path:
    return next(each for each in (path, *path.absolute().parents) if each.exists())


def check_device(
    setting: str,
    devices: Sequence[str],
    num_gpus: int,
    torch: str,
    *,
    has_nvml: bool,
    built_for: str = "",
    driver_cuda: int = 0,
) -> Iterator[str]:
    """Check that the GPUs can be used. `setting` is the setting, `devices` are the devices that it selects.

    `torch` is the installed version, and `built_for` its version of CUDA, such as 13.0; `driver_cuda` is the latest
    CUDA that the driver supports, such as 13000. Empty and 0 mean unknown.
    """
    if devices == ["cpu"]:
        return
    numbers = [int(each.removeprefix("cuda:")) for each in devices if each.startswith("cuda:")]
    if not num_gpus:
        none = "/dev has no nvidia0 and no dxg"
        hidden = "CUDA_VISIBLE_DEVICES hides them" if "CUDA_VISIBLE_DEVICES" in os.environ else none
        yield (
            f"--device {setting}: no NVIDIA GPU can be used here ({hidden}); install NVIDIA's driver, "
            "start the container with --gpus all, or use --device cpu"
        )
    elif (highest := max(numbers, default=-1)) >= num_gpus:
        last = f"cuda:{num_gpus - 1}"
        legal = last if num_gpus == 1 else f"cuda:0 to {last}"
        yield f"--device cuda:{highest}: is not among the GPUs that can be used here, {legal}; use one of those, or cpu"
    elif torch.endswith("+cpu"):
        yield (
            f"--device {setting}: torch {torch} is a build for CPUs; "
            f"pip install torch=={torch.removesuffix('+cpu')} from the default index, or use --device cpu"
        )
    elif not has_nvml:
        remedy = "pip install nvidia-ml-py, or use --device cpu"
        yield f"--device {setting}: the GPU's memory cannot be measured; {remedy}"
    elif built_for and driver_cuda and driver_cuda // 1000 < (major := int(built_for.split(".")[0])):
        known = f"CUDA {driver_cuda // 1000}.{driver_cuda % 1000 // 10}"
        needed = f"driver {MIN_DRIVERS[major]}" if major in MIN_DRIVERS else f"a driver for CUDA {major}"
        yield (
            f"--device {setting}: NVIDIA's driver{driver_version()} knows {known}, and torch {torch} is built for CUDA "
            f"{built_for}; install {needed} or newer, or use --device cpu"
        )


def cuda_of_torch() -> str:
    """Return the version of CUDA that the installed PyTorch is built for, without importing it; empty if unknown."""
    package = find_spec("torch")
    if package is None or package.origin is None:
        return ""
    found = re.search(r"^cuda\b.*= '([\d.]+)'", Path(package.origin).with_name("version.py").read_text(), re.MULTILINE)
    return found[1] if found else ""


def cuda_of_driver() -> int:
    """Return the latest CUDA version that the driver's library supports, such as 13010 for 13.1; 0 without a library.

    Programs compute with this library; in a container it may be newer than the kernel's driver.
    """
    version = ctypes.c_int()
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    return version.value


def driver_version() -> str:
    """Return a space and the version of the kernel's driver; empty if unknown."""
    with suppress(OSError):
        if found := re.search(r"\s\d{3}\.[\d.]+", DRIVER_FILE.read_text()):
            return f" {found[0].strip()}"
    return ""


def no_libpython() -> str:
    """Return the problem that `shared_libpython` finds nothing, with the remedy."""
    return (
        f"{sys.executable} has no shared libpython, which Triton's stub loads; install it (Debian, Ubuntu: apt install "
        f"libpython{sys.version_info[0]}.{sys.version_info[1]}), or build Python with --enable-shared"
    )


def shared_libpython() -> Path | None:
    """Return the directory of this interpreter's shared libpython; None if there is none."""
    library = sysconfig.get_config_var("LDLIBRARY") or ""
    candidates = [sysconfig.get_config_var("LIBDIR"), os.path.join(sys.base_prefix, "lib")]
    multiarch = sysconfig.get_config_var("MULTIARCH")
    candidates += [os.path.join("/usr/lib", multiarch)] if multiarch else []
    names = [name for name in (sysconfig.get_config_var("INSTSONAME"), library) if name and ".so" in name]
    for directory in filter(None, candidates):
        for name in names:
            if os.path.exists(os.path.join(directory, name)):
                return Path(directory)
    return None


if __name__ == "__main__":
    problems = [*check_python(), *check_venv()]
    for problem in problems:
        print(f"✗ {problem}", file=sys.stderr)
    sys.exit(1 if problems else 0)
