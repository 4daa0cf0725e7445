"""Real models that nobody here wrote: which are learnt and compacted exactly, and which refused.

The list is data (`models.toml`), the versions are in `requirements.txt`, and one command runs it:

    python -m benchmarks.zoo --only 'hf/*'
"""
