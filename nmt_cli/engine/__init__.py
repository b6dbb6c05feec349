"""Search on a CPU without torch: kernels in C, compiled when nmt is installed, called by ctypes."""
