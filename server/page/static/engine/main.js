// The engine page.
