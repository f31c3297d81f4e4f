"""Whether implementations compute what the float64 references do, on inputs made to break them: one list for tests and gate."""
