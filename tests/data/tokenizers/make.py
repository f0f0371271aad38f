"""
Write llamacpp.json anew: what llama.cpp makes of its texts, with each of its vocabularies.

Needs llama-cpp-python, and the folder models/ of its sdist: python make.py MODELS
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import gguf
import llama_cpp


HERE = Path(__file__).parent

# Each splits text in a way of its own; their names are written into GPT-2's vocabulary.
PRE = (
    *("default", "gpt-2", "smollm", "llama-bpe", "dbrx", "minicpm5", "qwen2", "qwen35", "ufakzeka"),
    *("laguna", "seed-coder", "bailingmoe", "exaone-moe", "jais-2", "falcon", "deepseek-llm"),
    *("deepseek-coder", "deepseek-v3", "spark2_5", "youtu", "tekken", "gpt-4o", "bloom", "viking"),
    *("granite-embed-multi-97m", "chameleon"),
)

TEXTS = json.loads((HERE / "llamacpp.json").read_text(encoding="utf-8"))["texts"]


def ids(path: Path, *modes: bool) -> list[list[str]]:
    """Return the ids of each text; a mode is whether special tokens are matched and added."""
    options = llama_cpp.llama_model_default_params()
    options.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), options)
    vocab = llama_cpp.llama_model_get_vocab(model)
    room = (llama_cpp.llama_token * 4096)()
    found = []
    for text in TEXTS:
        data = text.encode()
        row = []
        for special in modes:
            count = llama_cpp.llama_tokenize(
                vocab, data, len(data), room, len(room), special, special
            )
            row.append(" ".join(map(str, room[:count])))
        found.append(row)
    llama_cpp.llama_model_free(model)
    return found


def renamed(path: Path, pre: str, folder: Path) -> Path:
    """Write a vocabulary again with the name of another pre-tokenizer."""
    reader = gguf.GGUFReader(path)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    writer = gguf.GGUFWriter(folder / "renamed.gguf", fields["general.architecture"])
    for name, value in (fields | {"tokenizer.ggml.pre": pre}).items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        if isinstance(value, list):
            writer.add_array(name, value)
        elif isinstance(value, str):
            writer.add_string(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        else:
            writer.add_uint32(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return folder / "renamed.gguf"


def main() -> None:
    """Write the file."""
    models = Path(sys.argv[1])
    found = sorted(models.glob("ggml-vocab-*.gguf"))
    names = {path.stem.removeprefix("ggml-vocab-"): path for path in found}
    names.pop("bert-bge")
    with tempfile.TemporaryDirectory() as folder:
        content = {
            "source": f"llama.cpp of llama-cpp-python {llama_cpp.__version__}",
            "texts": TEXTS,
            "vocabularies": {name: ids(path, False, True) for name, path in names.items()},
            "pre": {pre: ids(renamed(names["gpt-2"], pre, Path(folder)), False) for pre in PRE},
        }
    text = json.dumps(content, indent=0, ensure_ascii=True)
    (HERE / "llamacpp.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
