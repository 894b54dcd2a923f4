"""What shapes the bytes of KV: the content of the weights, the instruction set."""

import hashlib
import json
import os
import tempfile
from pathlib import Path

# What a model's KV follows from. A tokenizer's files are left out: keys are digests of token ids.
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
SETTINGS = ("config.json", "params.json", "quantize_config.json", "hf_quant_config.json", "adapter_config.json")
PIECE = 1 << 22


def weights_digest(folder, cache=None):
    """The digest of a model folder's weights and settings, in hexadecimal digits: of their content, whatever they are called and wherever they lie.

    Reads every byte once a state of a file: digests are remembered in the small file `cache` by path, size and time of change. A file whose time was set back by hand
    to that of another of the same size would be taken for it; the inode's own time of change, which nobody sets, is compared too.
    """
    names = sorted(name for name in os.listdir(folder) if name.endswith(WEIGHTS) or name in SETTINGS)
    if not any(name.endswith(WEIGHTS) for name in names):
        raise ValueError(f"{folder} has no weights ({', '.join(WEIGHTS)}); name the folder that has")
    cache = Path(cache or _default_cache())
    known, fresh = _read(cache), {}
    whole = hashlib.sha256()
    for name in names:
        path = os.path.realpath(os.path.join(folder, name))
        stamp = _stamp(path)
        digest = known.get(path, {}).get(stamp)
        if digest is None:
            digest = _of_file(path)
            # One that is being written to has another stamp by now: not worth remembering.
            if _stamp(path) == stamp:
                fresh[path] = {stamp: digest}
        kind = name if name in SETTINGS else "weights"
        whole.update(f"{kind}:{digest}\n".encode())
    if fresh:
        _write(cache, {**known, **fresh})
    return whole.hexdigest()


def has_weights(folder):
    """Whether it is a folder with weights."""
    return os.path.isdir(folder) and any(name.endswith(WEIGHTS) for name in os.listdir(folder))


def _of_file(path):
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while piece := file.read(PIECE):
            digest.update(piece)
    return digest.hexdigest()


def _stamp(path):
    at = os.stat(path)
    return f"{at.st_size}:{at.st_mtime_ns}:{at.st_ctime_ns}:{at.st_ino}"


def _default_cache():
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(base, "ragstone", "weights.json")


def _read(cache):
    try:
        known = json.loads(cache.read_text())
        return known if isinstance(known, dict) else {}
    except (OSError, ValueError):
        return {}


def _write(cache, known):
    """Replaced as a whole. That it cannot be written costs reading the weights again."""
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=cache.parent, delete=False) as file:
            json.dump(known, file)
        os.replace(file.name, cache)
    except OSError:
        pass


def instruction_set(cpuinfo="/proc/cpuinfo"):
    """The widest of the sets that CPU backends lay out KV by; empty where the machine does not say."""
    try:
        text = Path(cpuinfo).read_text()
    except OSError:
        return ""
    flags = next((line.split(":", 1)[1].split() for line in text.splitlines() if line.startswith(("flags", "Features"))), [])
    sets = (("amx_tile", "amx"), ("avx512f", "avx512"), ("avx2", "avx2"), ("sve", "sve"), ("asimd", "neon"))
    return next((name for flag, name in sets if flag in flags), "")
