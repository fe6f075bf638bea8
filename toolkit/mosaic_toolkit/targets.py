"""Chips that the toolkit can lower for, and the facts that it uses of them.

Sources: TPU figures are those of ``jax.experimental.pallas.tpu.get_tpu_info``
(per TensorCore; v4 and v5p devices join two cores).  What libtpu grants one kernel
of VMEM, and what it withholds, was measured with libtpu 0.0.52: a kernel with two
windows of growing size, compiled for each chip with and without ``vmem_limit_bytes``,
until "exceeded scoped vmem limit" or "exceeded vmem capacity" named the number.  GPU figures: shared memory
and barrier limits from the CUDA C++ Programming Guide, table "Technical
specifications per compute capability"; SM counts, memory sizes and bandwidths
and dense peak rates from NVIDIA's A100 (SXM4, 80 GB), H100 (SXM5), H200 (SXM) and B200 (SXM) data
sheets.
"""

from __future__ import annotations

import dataclasses

from .errors import ToolkitError

KiB = 1024
MiB = 1024 * KiB


@dataclasses.dataclass(frozen=True)
class Target:
    """One chip.

    Attributes:
      name: the name that users type, for example ``v5e``.
      platform: JAX's lowering platform, ``tpu`` or ``cuda``.
      device_kind: what ``jax.Device.device_kind`` answers on the chip.
      num_cores: TensorCores of one JAX device (TPU) or SMs (GPU).
      memory: capacity in bytes of each on-chip memory, for one core.
      granted: bytes of a memory that the compiler lets one kernel have unless the
        kernel asks for another number; a memory that is not named is granted whole.
      withheld: bytes of a memory that the compiler keeps for itself.
      hbm_bytes: device memory in bytes, for one JAX device.
      hbm_bytes_per_second: device memory bandwidth, for one JAX device.
      bf16_flops_per_second: dense bf16 peak rate, for one JAX device.
      compute_capability: ``major.minor`` on a GPU, None on a TPU.
    """

    name: str
    platform: str
    device_kind: str
    num_cores: int
    memory: tuple[tuple[str, int], ...]
    hbm_bytes: int
    hbm_bytes_per_second: int
    bf16_flops_per_second: int
    compute_capability: str | None = None
    granted: tuple[tuple[str, int], ...] = ()
    withheld: tuple[tuple[str, int], ...] = ()

    @property
    def device_platform(self) -> str:
        """What ``jax.Device.platform`` answers on the chip."""
        return "gpu" if self.platform == "cuda" else self.platform

    def capacity(self, space: str) -> int | None:
        """Bytes of an on-chip memory, or None where it has no such memory."""
        return dict(self.memory).get(space)

    def usable(self, space: str) -> int | None:
        """Bytes that a kernel can have if it asks, or None where there is no such memory."""
        capacity = self.capacity(space)
        return None if capacity is None else capacity - dict(self.withheld).get(space, 0)

    def __str__(self) -> str:
        return self.name


def _tpu(
    name, kind, cores, vmem_mib, hbm, bandwidth, bf16, *, granted_mib, withheld_kib=0
) -> Target:
    memory = (("vmem", vmem_mib * MiB), ("smem", 1 * MiB))
    return Target(
        name,
        "tpu",
        kind,
        cores,
        memory,
        hbm,
        bandwidth,
        bf16,
        granted=(("vmem", granted_mib * MiB),),
        withheld=(("vmem", withheld_kib * KiB),),
    )


def _gpu(name, kind, sms, capability, hbm, bandwidth, bf16, tmem=0, smem_kib=227) -> Target:
    memory = (("smem", smem_kib * KiB),) + ((("tmem", tmem),) if tmem else ())
    return Target(name, "cuda", kind, sms, memory, hbm, bandwidth, bf16, capability)


TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        _tpu(
            "v4", "TPU v4", 2, 16, 34_400_000_000, 1_230_000_000_000, 275 * 10**12, granted_mib=16
        ),
        _tpu(
            "v5e",
            "TPU v5 lite",
            1,
            128,
            17_200_000_000,
            820_000_000_000,
            197 * 10**12,
            granted_mib=16,
        ),
        _tpu(
            "v5p",
            "TPU v5",
            2,
            64,
            103_000_000_000,
            2_460_000_000_000,
            459 * 10**12,
            granted_mib=16,
            withheld_kib=64,
        ),
        _tpu(
            "v6e",
            "TPU v6 lite",
            1,
            128,
            34_400_000_000,
            1_640_000_000_000,
            920 * 10**12,
            granted_mib=32,
            withheld_kib=64,
        ),
        _tpu(
            "tpu7x",
            "TPU7x",
            1,
            64,
            103_000_000_000,
            3_700_000_000_000,
            1155 * 10**12,
            granted_mib=32,
            withheld_kib=64,
        ),
        _gpu(
            "a100",
            "NVIDIA A100-SXM4-80GB",
            108,
            "8.0",
            80 * 10**9,
            2_039_000_000_000,
            312 * 10**12,
            smem_kib=163,
        ),
        _gpu(
            "h100", "NVIDIA H100 80GB HBM3", 132, "9.0", 80 * 10**9, 3_350_000_000_000, 989 * 10**12
        ),
        _gpu("h200", "NVIDIA H200", 132, "9.0", 141 * 10**9, 4_800_000_000_000, 989 * 10**12),
        _gpu(
            "b200",
            "NVIDIA B200",
            148,
            "10.0",
            180 * 10**9,
            7_700_000_000_000,
            2250 * 10**12,
            256 * KiB,
        ),
    )
}

# What a kernel is lowered for when nobody names a chip.
DEFAULT_TARGETS = {"tpu": TARGETS["v5e"], "cuda": TARGETS["h100"]}


def get_target(name: str) -> Target:
    """The chip of that name.

    Raises:
      ToolkitError: no such chip is known.
    """
    try:
        return TARGETS[name.strip().lower()]
    except KeyError:
        raise ToolkitError(
            f"unknown target '{name}'", hint=f"known targets: {', '.join(TARGETS)}"
        ) from None
