"""`python -m benchmarks.peers`: the same work on our stores and on those that other frameworks bring.

What is below `adapters`, and `worker`, runs in an environment that has one peer and nothing of ours but these files.
"""
