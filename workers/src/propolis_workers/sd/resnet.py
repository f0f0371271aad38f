"""Residual blocks and changes of resolution, as UNet and VAE have them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from propolis import ops


if TYPE_CHECKING:
    from propolis import Tensor
    from propolis_workers.sd.layers import Weights


class ResnetBlock:
    """Two convolutions with norms before them, around them a shortcut (He et al. 2016)."""

    def __init__(
        self,
        weights: Weights,
        channels_in: int,
        channels_out: int,
        *,
        groups: int,
        eps: float,
        time_width: int = 0,
    ) -> None:
        """
        Read the weights.

        Args:
            weights: where from.
            channels_in: of the input.
            channels_out: of the output.
            groups: of the norms.
            eps: of the norms.
            time_width: elements of the time embedding; 0 without one.
        """
        self.norm1 = weights.group_norm("norm1", channels_in, groups, eps)
        self.conv1 = weights.conv2d("conv1", channels_in, channels_out, 3, padding=1)
        self.time = None
        if time_width:
            self.time = weights.linear("time_emb_proj", time_width, channels_out)
        self.norm2 = weights.group_norm("norm2", channels_out, groups, eps)
        self.conv2 = weights.conv2d("conv2", channels_out, channels_out, 3, padding=1)
        self.shortcut = None
        if channels_in != channels_out:
            self.shortcut = weights.conv2d("conv_shortcut", channels_in, channels_out, 1)

    def __call__(self, x: Tensor, time: Tensor | None = None) -> Tensor:
        """(b, in, h, w), and the activated time embedding (b, time) -> (b, out, h, w)."""
        y = self.conv1(self.norm1.silu(x))
        if self.time is not None and time is not None:
            shift = self.time(time)
            ops.add.into(y, y, shift.reshape(*shift.shape, 1, 1))
        y = self.norm2.silu(y)  # a name of its own would keep two in memory
        y = self.conv2(y)
        return ops.add.into(y, y, x if self.shortcut is None else self.shortcut(x))


class Downsample:
    """Half the resolution, by a convolution with stride 2."""

    def __init__(self, weights: Weights, channels: int, padding: int) -> None:
        """
        Read the weights.

        Args:
            weights: where from.
            channels: of input and output.
            padding: zeros around the input; where 0, one row and column of zeros are put
                below and to the right, as in VAEs.
        """
        self.conv = weights.conv2d("conv", channels, channels, 3, stride=2, padding=padding)

    def __call__(self, x: Tensor) -> Tensor:
        """(b, channels, h, w) -> (b, channels, h / 2, w / 2)."""
        if not self.conv.padding:
            batch, channels, height, width = x.shape
            padded = ops.full((batch, channels, height + 1, width + 1), 0, x.dtype, x.device)
            ops.assign(padded.narrow(2, 0, height).narrow(3, 0, width), x)
            x = padded
        return self.conv(x)


class Upsample:
    """Twice the resolution, or another, by repeated pixels and a convolution."""

    def __init__(self, weights: Weights, channels: int) -> None:
        self.conv = weights.conv2d("conv", channels, channels, 3, padding=1)

    def __call__(self, x: Tensor, size: tuple[int, int] | None = None) -> Tensor:
        """(b, channels, h, w) -> (b, channels, 2h, 2w), or of that size."""
        return self.conv(
            ops.upsample_nearest2d(x, size or (2 * x.shape[2], 2 * x.shape[3])),
        )


__all__ = ["Downsample", "ResnetBlock", "Upsample"]
