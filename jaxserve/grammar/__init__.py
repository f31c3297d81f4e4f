"""What an output must look like, from a request's words to a matcher that says which tokens may come next.

`source` writes the grammar that llguidance compiles, `schema` prepares JSON schemas for it, `compile` compiles it, `vocabulary`
says what the tokens are. `grammars` does that for an engine, in threads of their own, and `matching` follows what sequences say.
"""
