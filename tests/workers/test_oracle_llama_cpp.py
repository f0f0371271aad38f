"""llama.cpp's logits of the tiny models' GGUF files are ours."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from tiny_families import FAMILIES
from tiny_families import IDS
from tiny_families import Truth
from tiny_families import vocabulary
from tiny_families import write_gguf


pytestmark = pytest.mark.oracle
# It compiles for minutes, which no run of the tests waits for.
llama_cpp = pytest.importorskip(
    "llama_cpp", reason="llama-cpp-python is not installed: pip builds it from its sdist"
)

LENGTH = 24  # windows are exceeded, and yet no ring of llama.cpp's caches is full
# What it computes in another way than transformers, so that its logits are no truth.
APART = {
    "gpt_oss": "YaRN's ramp begins and ends at whole pairs there",
    **dict.fromkeys(("mistral", "phi3", "starcoder2"), "it has no window for them"),
    "deepseek": "it knows V2-Lite, whose queries are not latent, by its 27 layers",
}
# It looks GELU up in a table of 16-bit numbers.
ROUGH = {"gemma", "gemma2", "gemma3", "phi2", "falcon"}


def logits_of(path: str, vocabulary_size: int) -> np.ndarray:
    """(LENGTH, vocabulary) f32, from one batch, keys and values in f32."""
    llama_cpp.llama_log_set(_SILENT, ctypes.c_void_p(0))
    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers = 0
    model = llama_cpp.llama_model_load_from_file(path.encode(), params)
    assert model
    asked = llama_cpp.llama_context_default_params()
    asked.n_ctx = asked.n_batch = asked.n_ubatch = 64
    asked.n_threads = asked.n_threads_batch = 1
    asked.type_k = asked.type_v = 0  # f32
    context = llama_cpp.llama_init_from_model(model, asked)
    assert context
    batch = llama_cpp.llama_batch_init(LENGTH, 0, 1)
    batch.n_tokens = LENGTH
    for i, token in enumerate(IDS[:LENGTH]):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, 1
        batch.seq_id[i][0] = 0
    assert llama_cpp.llama_decode(context, batch) == 0
    rows = [llama_cpp.llama_get_logits_ith(context, i) for i in range(LENGTH)]
    found = np.array([np.ctypeslib.as_array(row, (vocabulary_size,)) for row in rows])
    llama_cpp.llama_batch_free(batch)
    llama_cpp.llama_free(context)
    llama_cpp.llama_model_free(model)
    return found


_SILENT = llama_cpp.llama_log_callback(lambda *_: None)


@pytest.mark.parametrize(
    "name", [name for name, family in FAMILIES.items() if family.gguf and name not in APART]
)
def test_logits(name, tmp_path):
    """Theirs are the golden ones, up to what their arithmetic rounds."""
    truth = Truth.read(name)
    path = write_gguf(tmp_path / "m.gguf", FAMILIES[name], truth, tokenizer=vocabulary())
    theirs, ours = logits_of(str(path), truth.logits.shape[1]), truth.logits[:LENGTH]
    error = ((theirs - ours) ** 2).mean() / (ours**2).mean()
    assert error <= (1e-4 if name in ROUGH else 1e-6)
