"""Parts of the benchmarks that load a server for long: what is asked, who asks it, and what is seen meanwhile."""
