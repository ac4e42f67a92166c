"""Several ranks without a device: the real sharding code on meta tensors, in a process group that sends nothing, seen from one rank."""
