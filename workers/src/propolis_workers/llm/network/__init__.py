"""The parts that language models are made of; which has which is said in ``llm.models``."""
