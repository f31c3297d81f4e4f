"""Jobs over a file of requests: read, answered in any order, written down durably, resumed after any end. Knows no engine."""
