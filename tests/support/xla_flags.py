"""XLA's flags in tests, which compile far more than they run."""

QUICK = (
    "--xla_backend_optimization_level=0",  # LLVM's optimisations take half of the time
    # The newer emitters load and free MLIR contexts for each program, which takes half of the rest.
    "--xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters",
)


def xla_flags(devices: int) -> str:
    """The flags of a process with this number of CPU devices."""
    return " ".join((f"--xla_force_host_platform_device_count={devices}", *QUICK))
