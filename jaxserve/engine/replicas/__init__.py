"""Many engines behind one link: requests are routed, and streams outlive the engine that began them."""
