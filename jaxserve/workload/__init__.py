"""Who asks for what, and when: requests of a simulation, and of a load that is sent to a server."""
