"""Programs that tests run in processes of their own."""

# Normalises ones on the CPU, and prints the first number.
NORM = """
import numpy as np
from propolis import Tensor, ops
x, weight = (Tensor.from_numpy(np.ones(shape, np.float32)) for shape in ((2, 8), 8))
print(round(float(ops.rms_norm(x, weight).numpy()[0, 0]), 3))
"""
