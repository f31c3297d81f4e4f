"""The contract between scheduler and executor: what a step computes, as plain arrays, and what came of it.

`plan` is the message and its result, `rows` keeps what plans say of running sequences, `batch` is a plan as the device takes it.
"""
