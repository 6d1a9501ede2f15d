"""The reference engine: a Hugging Face model behind an OpenAI-compatible API, with its KV handed over or taken.

Small on purpose: it is the engine of the quick start, of the tests and of work on the protocol. One thread computes
(`loop`), asyncio serves HTTP (`http`), the agent's thread copies KV.
"""
