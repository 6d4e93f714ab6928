"""What the Ascend compiler makes of a Triton kernel, and what that costs. Needs no NPU."""
