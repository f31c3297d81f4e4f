"""The last steps of an engine: kept while it runs, written down when it dies, run again to find out why."""
