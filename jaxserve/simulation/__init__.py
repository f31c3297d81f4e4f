"""The real scheduler, cache and engine core on a virtual clock: what a workload would see of a fleet, found out on a laptop.

Start at `scenario.simulate` (settings to a finished simulation); `workload` and `trace` make requests, `replica` runs one engine,
`fleet` drives several event by event, `ledger` keeps the accounts, `report`, `table` and `plots` show them. Never jax.
"""
