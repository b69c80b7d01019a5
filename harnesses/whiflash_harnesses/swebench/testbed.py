"""The working tree of a task, and the patch that is taken from it.

The tree is a git repository with one commit and nothing else: no remote, no tag, no later object, so that a
fix cannot be read from history. The commit is made with a fixed author, date and message and fixed file
modes, so its id depends on the content alone: that id is the row's ``base_commit``.
"""

import fnmatch
import os
import shlex
import shutil
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

from whiflash_engine.errors import ConfigError, WhiFlashError
from whiflash_harnesses.environments import Environment
from whiflash_harnesses.swebench.sources import fetch
from whiflash_harnesses.swebench.tasks import Source, Task

_WHO = {"NAME": "base", "EMAIL": "base@example.invalid", "DATE": "2000-01-01T00:00:00+0000"}
_JUNK = ("__pycache__", "*.pyc", ".pytest_cache", "*.egg-info", "*.orig", "*.rej")
PATCH_LIMIT = 5_000_000
_PATCH_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Testbed:
    """``tree`` is the working tree; ``shared``, read-only for commands, holds a copy of ``.git``."""

    tree: Path
    shared: Path
    base_commit: str

    __test__ = False  # pytest collects classes named Test*


def build_testbed(task: Task, root: Path) -> Testbed:
    """Build the task's working tree under the new folder ``root``; fetch its source if need be."""
    testbed = Testbed(root / "testbed", root / "shared", str(task.row["base_commit"]))
    testbed.shared.mkdir(parents=True)
    _unpack(fetch(task.source), task.source, testbed.tree)
    commit = _commit(testbed.tree)
    if commit != testbed.base_commit:
        raise ConfigError(
            f"task {task.instance_id}: its source makes commit {commit}, its row says base_commit "
            f"{testbed.base_commit}: the row or the source's leave_out is wrong"
        )
    # A command may commit, or delete .git; the patch is taken against this copy.
    shutil.copytree(testbed.tree / ".git", testbed.shared / "base.git")
    return testbed


def take_patch(testbed: Testbed, environment: Environment) -> str:
    """Return all changes of the working tree against the base commit as a git patch; empty if there are none.

    Git runs inside the environment: what commands have left in the tree must not configure a git out here.
    """
    base = shlex.quote(environment.inside(testbed.shared / "base.git"))
    tree = shlex.quote(environment.workdir)
    leave_out = " ".join(f"':(exclude,glob)**/{name}' ':(exclude,glob)**/{name}/**'" for name in _JUNK)
    command = f"""
set -e
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cp -r {base} "$scratch/base.git"
export GIT_DIR="$scratch/base.git" GIT_WORK_TREE={tree} GIT_CONFIG_GLOBAL=/dev/null
git -c core.fileMode=false add -A -- . {leave_out} 2>"$scratch/errors" || {{ cat "$scratch/errors"; exit 1; }}
git diff --cached --binary --no-color --no-ext-diff --no-renames {testbed.base_commit} 2>/dev/null
"""
    result = environment.execute(command, _PATCH_SECONDS, limit=PATCH_LIMIT)
    if result.returncode:
        raise WhiFlashError(f"git diff in the testbed failed: {result.output.strip()[-300:]}")
    if result.cut_bytes:
        raise WhiFlashError(f"the patch is larger than {PATCH_LIMIT} bytes")
    return result.output


def _unpack(archive: Path, source: Source, tree: Path) -> None:
    """Unpack the archive's one folder as ``tree``, without what packaging added."""
    unpacked = tree.with_name("unpacked")
    with tarfile.open(archive) as tar:
        tar.extractall(unpacked, filter="data")
    folders = [path for path in unpacked.iterdir() if path.is_dir()]
    if len(folders) != 1:
        raise WhiFlashError(f"{archive.name} does not hold exactly one folder")
    folders[0].rename(tree)
    shutil.rmtree(unpacked)
    for path in sorted(tree.rglob("*"), reverse=True):
        name = path.relative_to(tree).as_posix()
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in source.leave_out):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _commit(tree: Path) -> str:
    _git(tree, "init", "--quiet", "--template=", "--initial-branch=main", "--object-format=sha1")
    _git(tree, "-c", "core.fileMode=false", "-c", "core.autocrlf=false", "add", "--force", "--all")
    _git(tree, "commit", "--quiet", "--no-verify", "--message", "base")
    return _git(tree, "rev-parse", "HEAD")


def _git(tree: Path, *arguments: str) -> str:
    """Run git without anybody's configuration. Only used before a command has touched the tree."""
    env = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "HOME": str(tree), "GIT_CONFIG_NOSYSTEM": "1"}
    env |= {"GIT_CONFIG_GLOBAL": os.devnull}
    env |= {f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in _WHO.items()}
    try:
        done = subprocess.run(["git", *arguments], cwd=tree, env=env, capture_output=True, text=True, check=True)
    except FileNotFoundError:
        raise ConfigError("git not found: install it (apt-get install git)") from None
    except subprocess.CalledProcessError as error:
        raise WhiFlashError(f"git {arguments[0]} failed in a new testbed: {error.stderr.strip()}") from error
    return done.stdout.strip()
