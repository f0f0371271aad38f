"""
Vocabularies, and the rules by which text becomes their ids.

`gguf` and `folder` read files; a module for each family (byte-level BPE, raw BPE, SentencePiece
BPE and unigram) turns text without special tokens into ids; `special` cuts text at those.
"""
