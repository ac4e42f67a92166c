"""Stand-ins for libraries that need a GPU: the tensors they hold, keep and make for a moment, without their arithmetic."""
