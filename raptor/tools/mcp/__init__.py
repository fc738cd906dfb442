"""`raptor mcp`: RAPTOR's functions as tools of an agent, by the Model Context Protocol (docs/how-to/agents.md)."""
