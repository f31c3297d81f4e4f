"""Fields that clients of other servers know and this one cannot honour: refused, warned of or dropped, never passed over."""
