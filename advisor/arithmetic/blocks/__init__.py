"""What autograd keeps of one block, tensor by tensor."""
