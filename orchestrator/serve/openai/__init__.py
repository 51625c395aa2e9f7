"""OpenAI's HTTP interface: bodies read strictly, answers streamed or whole, errors in its shape."""
