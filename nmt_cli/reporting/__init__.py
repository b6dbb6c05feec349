"""What a run did and what a model looks at, as pages to read."""
