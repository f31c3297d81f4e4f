"""Capacity planning: what a model costs in memory, time and money on given hardware. Arithmetic alone; never jax.

Start at `study.study` (settings to a Study); `report.show` prints one, `formulas.formulas` says how each number came about.
"""
