"""A fleet on a Ray cluster: replicas that are engines, and an ingress that is the whole server without one of its own."""
