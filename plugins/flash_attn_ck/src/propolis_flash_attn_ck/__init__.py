"""Composable Kernel's flash attention, compiled ahead of time behind an ABI of our own."""
