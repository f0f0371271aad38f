"""Calls of tools: who writes them how, how they are read, and grammars that make them valid."""
