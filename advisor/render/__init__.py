"""A report in every form in which it leaves: terminal text, Markdown, JSON, one HTML file, six lines for a chat. Pure functions."""
