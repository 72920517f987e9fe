"""XLA's flags for tests: programs that compile in a third of the time, simulated devices."""

# They run a few times, and need not run fast. What XLA does to a program as a whole (partitioning,
# rematerialisation) stays as it is.
QUICKLY_COMPILED = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_cpu_use_fusion_emitters=false"
)


def xla_flags(devices: int) -> str:
    """For XLA_FLAGS of a process that sees so many CPU devices."""
    return f"{QUICKLY_COMPILED} --xla_force_host_platform_device_count={devices}"
