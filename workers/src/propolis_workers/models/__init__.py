"""
Models on this machine: pulled from a hub, listed, shown, removed, quantised.

:mod:`propolis_workers.models.hub` alone talks to another machine, and only when a command pulls.
"""
