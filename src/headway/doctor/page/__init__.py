"""The answer as one page: in a terminal, as Markdown, HTML and JSON."""
