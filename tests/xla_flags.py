"""XLA flags for tests: three times faster compilation, simulated devices."""

import jax

# Later jaxlibs always use their fusion emitters, and end a process whose flags mention them.
MAY_EMIT = jax.__version_info__ < (0, 11, 1)

# XLA's passes as in users' programs. With those below, two programs fuse different operations and
# round differently.
AS_USUAL = {"xla_cpu_use_fusion_emitters": True} if MAY_EMIT else {}

# Programs run a few times and need not be fast. Whole-program passes of XLA (partitioning,
# rematerialisation) are unaffected.
QUICKLY_COMPILED = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    + " --xla_cpu_use_fusion_emitters=false" * MAY_EMIT
)


def xla_flags(devices):
    """Value of XLA_FLAGS for a process that sees `devices` CPU devices."""
    return f"{QUICKLY_COMPILED} --xla_force_host_platform_device_count={devices}"
