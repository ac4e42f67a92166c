"""The parts of a step's time: products, bytes moved by kernels, links, the host."""
