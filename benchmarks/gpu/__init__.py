"""What an NVIDIA GPU makes of the kernels and the engine, in one run: `python -m benchmarks.gpu`.

Every section runs in a process of its own: a kernel that crashes or hangs costs its section, not the run, and memory that one
section took is free for the next. The file with the results is written after every section.
"""
