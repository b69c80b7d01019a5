"""``whiflash.json`` beside converted files: what they were made from, and how to tell that they are whole."""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

NAME = "whiflash.json"
TEMPLATE_NAME = "chat_template.jinja"

COMPLETE = "complete"
OLD_TEMPLATE = "old template"


@dataclass(frozen=True)
class Manifest:
    """Contents of ``whiflash.json``."""

    converter: int
    """Version of the conversion; a new one makes old folders stale."""
    source_sha256: str
    template_sha256: str
    sizes: dict[str, int]
    """Bytes of every file but the manifest and the chat template."""
    sha256: dict[str, str]
    """Digest of the same files."""

    def write(self, folder: Path) -> None:
        """Write the manifest into ``folder`` in one step."""
        replace_text(folder / NAME, json.dumps(asdict(self), indent=2) + "\n")


def describe(folder: Path, *, converter: int, source_sha256: str, template: str) -> Manifest:
    """Return the manifest of the files now in ``folder``."""
    files = sorted(path for path in folder.iterdir() if path.name not in (NAME, TEMPLATE_NAME))
    return Manifest(
        converter=converter,
        source_sha256=source_sha256,
        template_sha256=sha256_text(template),
        sizes={path.name: path.stat().st_size for path in files},
        sha256={path.name: sha256_file(path) for path in files},
    )


def read(folder: Path) -> Manifest | None:
    """Return the manifest in ``folder``; ``None`` if there is none that can be read."""
    try:
        return Manifest(**json.loads((folder / NAME).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def inspect(folder: Path, *, converter: int, source_sha256: str, template: str, verify: bool) -> str:
    """Return :data:`COMPLETE`, :data:`OLD_TEMPLATE`, or the reason why ``folder`` has to be made again.

    ``verify`` reads every byte; otherwise sizes are compared, which costs nothing.
    """
    manifest = read(folder)
    if manifest is None:
        return f"{NAME} is missing or unreadable"
    if (manifest.converter, manifest.source_sha256) != (converter, source_sha256):
        return "it was made by another version"
    for name, size in manifest.sizes.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size} bytes, not {size}"
        if verify and sha256_file(path) != manifest.sha256.get(name):
            return f"{name} has changed"
    # The file itself is compared too: an edited template would change prompts without a word.
    on_disk = folder / TEMPLATE_NAME
    wanted = sha256_text(template)
    if manifest.template_sha256 != wanted or not on_disk.is_file() or sha256_file(on_disk) != wanted:
        return OLD_TEMPLATE
    return COMPLETE


def replace_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` so that a reader sees the old text or the new, never a part."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def sha256_text(text: str) -> str:
    """Return the hex digest of ``text`` in UTF-8."""
    return hashlib.sha256(text.encode()).hexdigest()


def sha256_file(path: Path) -> str:
    """Return the hex digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
