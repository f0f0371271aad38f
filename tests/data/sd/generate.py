"""
Write the golden data of Stable Diffusion's models: ``python tests/data/sd/generate.py``.

It needs torch, diffusers and transformers.  ``tensors.json`` gets the names and shapes of
the tensors of each tiny model, ``models.npz`` what diffusers' and transformers' models give
for inputs that are drawn by name.
"""

from __future__ import annotations

import json
import re

import diffusers
import numpy as np
import torch
import transformers
from families import END
from families import FAMILIES
from families import HERE
from families import drawn
from families import random_weights


def built(config: dict) -> torch.nn.Module:
    """The model of a config, in eval mode."""
    config = dict(config)
    if "_class_name" in config:
        model = getattr(diffusers, config.pop("_class_name")).from_config(config)
    else:
        kind = getattr(transformers, config["architectures"][0])
        model = kind(transformers.CLIPTextConfig(**config))
    return model.eval()


def filled(model: torch.nn.Module) -> dict[str, list[int]]:
    """Give a model its random weights; gives names and shapes as published files have them."""
    own = {n: list(t.shape) for n, t in model.state_dict().items() if "position_ids" not in n}
    prefix = "text_model." if isinstance(model, transformers.CLIPPreTrainedModel) else ""
    names = {n: n if n.startswith((prefix, "text_projection")) else prefix + n for n in own}
    tensors = {names[n]: shape for n, shape in own.items()}
    values = random_weights(tensors)
    model.load_state_dict({n: torch.from_numpy(values[names[n]]) for n in own}, strict=False)
    return tensors


def texts(name: str) -> np.ndarray:
    """Two texts of 77 ids, one short and one that fills its place; padded with end tokens."""
    ids = 3 + np.abs(drawn(name, (2, 77)) * 1000).astype(np.int64) % (END - 4)
    ids[:, 0] = END - 1
    ids[0, 9:] = END
    ids[1, -1] = END
    return ids


def run_text(model: torch.nn.Module, name: str) -> dict[str, np.ndarray]:
    """What a text encoder gives."""
    ids = texts(f"{name}.ids")
    result = model(torch.from_numpy(ids), output_hidden_states=True)
    pooled = result.text_embeds if "text_embeds" in result else result.pooler_output
    return {
        f"{name}.ids": ids,
        f"{name}.last": result.last_hidden_state.numpy(),
        f"{name}.penultimate": result.hidden_states[-2].numpy(),
        f"{name}.pooled": pooled.numpy(),
    }


def run_unet(model: torch.nn.Module, name: str) -> dict[str, np.ndarray]:
    """What a UNet gives."""
    config = model.config
    inputs = {
        "sample": drawn(f"{name}.sample", (2, config.in_channels, 8, 8)),
        "timestep": np.float32([981, 37]),
        "context": drawn(f"{name}.context", (2, 77, config.cross_attention_dim)),
    }
    extra = {}
    if config.addition_embed_type:
        inputs["text_embeds"] = drawn(f"{name}.text_embeds", (2, 20))
        inputs["time_ids"] = np.float32([[64, 64, 0, 0, 64, 64], [80, 48, 3, 5, 64, 64]])
        added = {k: torch.from_numpy(inputs[k]) for k in ("text_embeds", "time_ids")}
        extra["added_cond_kwargs"] = added
    if config.time_cond_proj_dim:
        inputs["guidance"] = drawn(f"{name}.guidance", (2, config.time_cond_proj_dim))
        extra["timestep_cond"] = torch.from_numpy(inputs["guidance"])
    sample, step, context = (torch.from_numpy(inputs[k]) for k in ("sample", "timestep", "context"))
    inputs["output"] = model(sample, step, context, **extra).sample.numpy()
    return {f"{name}.{key}": value for key, value in inputs.items()}


def run_vae(model: torch.nn.Module, name: str) -> dict[str, np.ndarray]:
    """What a VAE gives."""
    image = np.tanh(drawn(f"{name}.image", (2, 3, 32, 48)))
    latents = drawn(f"{name}.latents", (1, 4, 11, 13))
    seen = model.encode(torch.from_numpy(image)).latent_dist
    z = torch.from_numpy(latents)
    whole = model.decode(z).sample
    model.enable_tiling()
    return {
        f"{name}.image": image,
        f"{name}.mean": seen.mean.numpy(),
        f"{name}.logvar": seen.logvar.numpy(),
        f"{name}.latents": latents,
        f"{name}.decoded": whole.numpy(),
        f"{name}.tiled": model.decode(z).sample.numpy(),
    }


def main() -> None:
    """Write both files."""
    tensors: dict[str, dict[str, dict[str, list[int]]]] = {}
    data: dict[str, np.ndarray] = {}
    for family, components in FAMILIES.items():
        tensors[family] = {}
        for component, config in components.items():
            if component == "scheduler":
                continue
            model = built(config)
            tensors[family][component] = filled(model)
            if component == "vae" and family != "sd15":
                continue  # they are the same but for the scaling factor
            run = run_text if component.startswith("text") else globals()[f"run_{component}"]
            data |= run(model, f"{family}.{component}")
    text = json.dumps(tensors, indent=1)
    text = re.sub(r"\[[^\]]*\]", lambda sizes: "".join(sizes[0].split()), text)  # a line each
    (HERE / "tensors.json").write_text(text + "\n", encoding="utf-8")
    np.savez_compressed(HERE / "models.npz", **data)


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main()
