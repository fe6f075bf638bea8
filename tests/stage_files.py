"""Small compiler dumps, written by hand in the compilers' formats."""

from __future__ import annotations

from pathlib import Path

PROGRAM = """\
HloModule jit_scale, is_scheduled=true

ENTRY %main.1 (x.1: f32[64,128]) -> f32[64,128] {
  %x.1 = f32[64,128]{1,0:T(8,128)} parameter(0)
  ROOT %scale.1 = f32[64,128]{1,0:T(8,128)} custom-call(%x.1), custom_call_target="tpu_custom_call"
}
"""

# Two nested loops.  The inner one's branch is marked with its outer loop's depth and its
# delay slots hold its own work; empty bundles have no mark.
BUNDLES = """\
= control target key start
LB: loop body
PF: predicated region fallthrough
= control target key end

     0   :  { %s90_s0 = inlined_call_operand.hbm [shape: f32[64,128], index: 0] /* operand */ }
   0x1   :  { %7 = vsyncpa [#allocation4], 0  ;;  %91 = sst [smem:[#allocation9_spill]] %s90_s0 }
   0x2 LB: > { %s10_s1 = sadd.s32 1, %s11_s2 } /* Start region 20 :: Start region 5 */
   0x3   : > { %12 = dma.hbm_to_vmem [thread:$0]  (%p3_p0), /*hbm=*/%s1_s1, /*size_in_granules=*/256, /*vmem=*/%s2_s2 /*
base_bounds: (8, 1)
window_bounds: (8, 1)
element_size_in_bytes: 1024
second_minor_factor: 1 */ }
   0x4 LB: >> { %v30_v0 = vld [vmem:[%s2_s2] sm:$0xff]  ;;  %v31_v1 = vld [vmem:[#allocation8_spill] sm:$0xff] } /* Start region 21 */
   0x5   : > { %40 = sbr.rel (!%p4_p1) target = $region21 }
   0x6   :  {}
   0x7   : >> { %41 = vst [vmem:[#allocation8_spill + $0x8] sm:$0xff] /*vst_source=*/%v30_v0 }
   0x8 PF: > { %50 = sbr.rel (!%p5_p2) target = $region20 } /* End region 21 */
   0x9   :  {} /* End region 20 */
   0xa   :  { %60 = vsyncpa [#allocation4], 1 } /* exit bundle */
"""

UTILIZATION = """\
== CAPACTIY:
MATMUL, VALU, NEWUNIT, SALU
    2     4     1     2
== UTILIZATION:
0 0 0 0
0 0 0 1
0 0 0 1
0 0 0 2
1 2 0 0
0 0 1 1
0 0 0 0
0 2 0 0
0 0 0 1
0 0 0 0
0 0 0 0
"""

LLO = """\
// [Enable stack traces]
$region0: #{scale.1}
  #allocation1 [shape = 'f32[8,128]{1,0:T(8,128)}', space=vmem, size = 0x1000, scoped, tag = 'scratch operand']
  #allocation2 [shape = 'u8[4096]{0}', space=vmem, size = 0x2000, scoped, tag = 'input window allocation for operator input 0. The window shape is f32[8,128], while the full shape is f32[64,128]. This allocation has 2 buffering levels.']
  #allocation3 [shape = 'u32[]', space=smem, size = 0xffffffffffffffff, tag = 'late']
  $region1: parent=0
    %s1 = sadd.s32 1, %s0 /* a comment */
"""

# The same program under other numbers, and one in which a constant differs.
LLO_RENAMED = LLO.replace("%s1", "%s71").replace("%s0", "%s70").replace("a comment", "b")
LLO_CHANGED = LLO_RENAMED.replace("sadd.s32 1", "sadd.s32 2")

FINGERPRINTS = """\
WfvY2a=:i=000000cb:c=00000037 original
WfvY2a=:i=000000cb:c=00000037 post-CP
m0hDh6=:i=000000c7:c=00000037 post-ra
"""

VMEM_REPORT = """\
<script>
const DATA ={"global_info": {"vmem_capacity": 134217728},
 "hlo_breakdowns": {"scale.1": {"total_size": 12288}}};
</script>
"""

DETAILS = """\
HLO:
  operation: %x.1 = f32[64,128]{1,0} parameter()
  emitted bundle range: <empty>
HLO:
  operation: %scale.1 = f32[64,128]{1,0} custom-call()
  emitted bundle range: [Sequencer:1:0x95, Sequencer:1:0xa2)
"""

MOSAIC = """\
module {
  func.func @scale(%x: memref<64x128xf32>) {
    tpu.enqueue_dma source(%x : memref<64x128xf32, #tpu.memory_space<any>>) loc(#loc3)
    return loc(#loc)
  }
}
#loc = loc(unknown)
#loc3 = loc("kernel.py":3:4)
"""


def write_tpu(directory: Path) -> Path:
    """The files of one TPU kernel, as two compilers leave them."""
    mosaic, llo = directory / "mosaic", directory / "llo"
    mosaic.mkdir(parents=True)
    llo.mkdir()
    files = {
        mosaic / "100-0000-mosaic-dump-scale-post-deserialization.txt": MOSAIC,
        mosaic / "200-0000-mosaic-dump-scale-post-deserialization.txt": MOSAIC,
        mosaic / "300-0001-mosaic-dump-scale-original.txt": MOSAIC,
        mosaic / "300-0002-mosaic-dump-scale-post-simplify.txt": MOSAIC.replace("%x", "%arg0"),
        mosaic / "300-0003-mosaic-dump-scale-post-lower.txt": MOSAIC.replace("64x", "32x"),
        llo / "400-TLP-hlo.txt": PROGRAM,
        llo / "400-TLP-00-original.txt": LLO,
        llo / "400-TLP-01-vmem_report.html": VMEM_REPORT,
        llo / "400-TLP-02-hlo-details.txt": DETAILS,
        llo / "500-scale.1-00-fingerprints.txt": FINGERPRINTS,
        llo / "500-scale.1-01-original.txt": LLO,
        llo / "500-scale.1-02-post-CP.txt": LLO_RENAMED,
        llo / "500-scale.1-03-post-ra.txt": LLO_CHANGED,
        llo / "500-scale.1-04-final_hlo-static-per-bundle-utilization.txt": UTILIZATION,
        llo / "500-scale.1-05-final_bundles.txt": BUNDLES,
    }
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
    return directory


_MODULE = """\
module @k {{
  %c640_i32 = arith.constant 640 : i32 loc(#loc)
  %t = gpu.launch async dynamic_shared_memory_size %c640_i32 {{
    {body}
  }} loc(callsite("f"("k.py":1:2) at #loc2))
}}
#loc = loc(unknown)
#loc2 = loc("k.py":3:4)

"""
_HEAD = "// -----// IR Dump Before {} ('builtin.module' operation: @k) //----- //\n"

PASSES_LOG = "".join(
    (
        _HEAD.format("FirstPass: first{a=1 b=2}"),
        _MODULE.format(body="%0 = arith.addi %a, %b : i32 loc(#loc)"),
        _HEAD.format("CanonicalizerPass: canonicalize{top-down=true}"),
        _MODULE.format(body="%sum = arith.addi %a, %b : i32 loc(#loc2)"),
        _HEAD.format("CSEPass: cse"),
        _MODULE.format(body="%1 = arith.muli %a, %b : i32 loc(#loc)"),
    )
)

DIALECT = """\
module @k {
  %1 = "mosaic_gpu.slice_smem"() <{offset = 512 : i32}> : () -> memref<2x!mosaic_gpu.barrier, #s>
  %2 = "mosaic_gpu.slice_smem"() <{alias_id = 1 : i64, offset = 0 : i32}> : () -> memref<16x16xf16, #s>
  %3 = "mosaic_gpu.slice_smem"() <{offset = 600 : i32}> : () -> memref<2x!other.thing, #s>
}
"""

# A loop from 0x20 to 0x60; at the end a spin wait off the straight path, whose jump back
# closes no loop, and the trap that nothing reaches.
SASS = """\
	.target	sm_90a
k:
.text.k:
   -:-:-:Y:01        /*0000*/                   LDC R1, c[0x0][0x28]
   -:-:-:Y:01        /*0010*/               @P0 UTMALDG.2D [UR8], [UR4]
.L_x_2:
   -:-:-:Y:01        /*0020*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR5], R5
   -:-:-:Y:05        /*0030*/              @!P0 BRA `(.L_x_0)
.L_x_3:
   -:-:-:Y:01        /*0040*/                   HGMMA.64x128x16.F32 R24, gdesc[UR8]
   -:-:-:Y:01        /*0050*/                   FADD R0, R1, R2
   -:-:-:Y:05        /*0060*/              @P1  BRA `(.L_x_2)
   -:-:-:Y:01        /*0070*/                   UTMASTG.2D [UR8], [UR4]
   -:-:-:Y:05        /*0080*/                   EXIT
.L_x_0:
   -:-:-:Y:01        /*0090*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR5], R5
   -:-:-:Y:05        /*00a0*/              @!P0 BRA `(.L_x_0)
   -:-:-:Y:05        /*00b0*/                   BRA `(.L_x_3)
.L_x_4:
   -:-:-:Y:05        /*00c0*/                   BRA `(.L_x_4)
   -:-:-:Y:00        /*00d0*/                   NOP
"""

PTXAS = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'k' for 'sm_90a'
ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized
ptxas info    : Function properties for k
    16 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 90 registers, used 2 barriers
"""


def write_mosaic_gpu(directory: Path) -> Path:
    """The files of one Mosaic GPU kernel."""
    folder = directory / "mosaic_gpu"
    folder.mkdir(parents=True)
    texts = {
        "before_layout_inference.txt": DIALECT,
        "mlir-passes.log": PASSES_LOG,
        "ptx": ".target sm_90a\n",
        "ptxas": PTXAS,
        "sass_ctrl": SASS,
    }
    for suffix, text in texts.items():
        (folder / f"k_0.{suffix}").write_text(text, encoding="utf-8")
    return directory
