"""
Convolutions on AMD GPUs, by MIOpen.

Nothing here loads a ROCm library until a device is used.
"""
