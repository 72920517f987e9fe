"""What figures are made of: style, colours, text that fits, sheets of tiles."""
