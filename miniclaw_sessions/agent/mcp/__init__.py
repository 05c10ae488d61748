"""Tools of MCP servers: programs that are started here, or addresses, named by the settings `[mcp.NAME]`."""
